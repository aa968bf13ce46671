"""The columns of decoded profiles: the one form in which profiles travel after decoding. No I/O, no decoding rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Ids: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float64]

FunctionName: TypeAlias = tuple[str, int, str]
"""File, first line, name: the key of a pstats dictionary, without memory addresses."""

NO_CALLER = -1
"""In `entry_caller`: the entry is the function's own row, not one of its callers' rows."""

NO_PARENT = -1
"""In `path_parent`: the path is a root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileColumns:
    """One decoded profile.

    An *entry* is either a function's own row (`entry_caller` is `NO_CALLER`) or the part of it that came through one
    caller. Each pair (function, caller) occurs once. Sampled profiles (pyinstrument) also carry their frame tree as
    paths: path i is function `path_function[i]` called from path `path_parent[i]`, and parents stand before children.

    Attributes:
        functions: distinct names; the ids below are positions in it.
        entry_function, entry_caller: ids, shape (entries,).
        calls, primitive_calls: counts, shape (entries,); 0 where the profiler counts none.
        self_seconds, cumulative_seconds: shape (entries,); finite, may be negative (off-CPU timer).
        path_parent, path_function, path_self_seconds: shape (paths,); empty for cProfile.
    """

    functions: list[FunctionName]
    entry_function: Ids
    entry_caller: Ids
    calls: Ints
    primitive_calls: Ints
    self_seconds: Floats
    cumulative_seconds: Floats
    path_parent: Ids
    path_function: Ids
    path_self_seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one file of a batch gave no profile.

    Attributes:
        reason: one sentence without the file's name.
        kind: one word for counting; "incomplete" is a file that ends too early and is probably still being written.
    """

    reason: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """Many decoded profiles on one table of names.

    Row r says: file `row_file[r]` has entry `row_entry[r]` with these values. Rows are ordered by file. Sample s says:
    file `sample_file[s]` spent `sample_self_seconds[s]` in path `sample_path[s]` itself.

    Attributes:
        files: how many files were asked for; failed ones have no rows.
        functions: distinct names. entry_function, entry_caller: distinct pairs of ids into it.
        path_parent, path_function: distinct paths, parents before children.
        failures: file position -> why.
        empty: positions of files that are known to hold no data (an unrecorded pyinstrument session).
    """

    files: int
    functions: list[FunctionName]
    entry_function: Ids
    entry_caller: Ids
    row_file: Ids
    row_entry: Ids
    calls: Ints
    primitive_calls: Ints
    self_seconds: Floats
    cumulative_seconds: Floats
    path_parent: Ids
    path_function: Ids
    sample_file: Ids
    sample_path: Ids
    sample_self_seconds: Floats
    failures: dict[int, Failure] = field(default_factory=dict)
    empty: list[int] = field(default_factory=list)
