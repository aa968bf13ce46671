"""The columns of decoded profiles: the one form in which profiles travel after decoding. No I/O, no decoding rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from monitor.profiles.raw import NO_CALLER as NO_CALLER
from monitor.profiles.raw import NO_PARENT as NO_PARENT
from monitor.profiles.raw import Failure as Failure
from monitor.profiles.raw import FunctionName as FunctionName

Ints: TypeAlias = npt.NDArray[np.int64]
Ids: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """Many decoded profiles on one table of names.

    An *entry* is either a function's own row (`entry_caller` is `NO_CALLER`) or the part of it that came through one
    caller. Sampled profiles (pyinstrument) also carry their frame tree as paths: path i is function `path_function[i]`
    called from path `path_parent[i]`.

    Row r says: file `row_file[r]` has entry `row_entry[r]` with these values. Rows are ordered by file. Sample s says:
    file `sample_file[s]` spent `sample_self_seconds[s]` in path `sample_path[s]` itself.

    Attributes:
        files: how many files were asked for; failed ones have no rows.
        functions: distinct names. entry_function, entry_caller: distinct pairs of ids into it.
        calls, primitive_calls: 0 where the profiler counts none.
        self_seconds, cumulative_seconds: finite; may be negative (off-CPU timer).
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
    failures: Mapping[int, Failure] = field(default_factory=dict)
    empty: list[int] = field(default_factory=list)
