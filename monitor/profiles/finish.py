"""From what a decoder process sent to checked columns. Nothing in it is believed: lengths, ranges, finite numbers.

Runs in the process that asked, which has numpy; the decoders do without, see `raw`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from monitor.profiles.builder import LARGEST_COUNT, LARGEST_SECONDS, NOT_COUNTED
from monitor.profiles.columns import NO_CALLER, NO_PARENT, DecodedBatch, Failure, Ids, Ints
from monitor.profiles.raw import COLUMN_CODES, RawBatch

TYPES: Mapping[str, type[np.generic]] = {"i": np.int32, "q": np.int64, "d": np.float64}
"""numpy takes "q" for another type than int64, as wide, at which it is many times slower."""
SMALL_TABLE = 2**20
"""Up to so many possible values a table is faster than sorting."""
MEASURES = ("calls", "primitive_calls", "self_seconds", "cumulative_seconds")

Line = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a batch holds beside its columns."""

    functions: list[tuple[str, Line, str]]
    failures: dict[int, Failure]
    empty: list[int]
    shared_names: bool


def read_parts(parts: Sequence[bytes | memoryview], files: int) -> RawBatch:
    """Read a batch that a decoder sent.

    Args:
        files: how many files the decoder was given.

    Raises:
        ValueError: the bytes are no batch of that many files.
    """
    if len(parts) != 1 + len(COLUMN_CODES):
        raise ValueError("a batch with other columns")
    head = msgspec.json.decode(parts[0], type=Head)  # a DecodeError is a ValueError
    columns = dict(zip(COLUMN_CODES, parts[1:], strict=True))
    batch = arrays(RawBatch(head.functions, columns, head.failures, head.empty, head.shared_names))
    check(batch, files)
    return batch


def arrays(batch: RawBatch) -> RawBatch:
    """Make numpy's arrays of the columns, without copying."""
    return batch._replace(
        columns={name: np.frombuffer(column, dtype=TYPES[COLUMN_CODES[name]]) for name, column in batch.columns.items()}
    )


def check(batch: RawBatch, files: int) -> None:
    """Raise ValueError unless all numbers of a batch point at something."""
    columns = batch.columns
    functions, paths = len(batch.functions), len(columns["path_parent"])
    rows, samples = len(columns["function"]), len(columns["sample_path"])
    lengths = (
        *((columns[name], rows) for name in ("caller", *MEASURES)),
        (columns["path_function"], paths),
        (columns["sample_self_seconds"], samples),
        (columns["row_ends"], files),
        (columns["sample_ends"], files),
    )
    if any(len(column) != length for column, length in lengths):
        raise ValueError("columns of different length")
    for column, least, end in (
        (columns["function"], 0, functions),
        (columns["caller"], NO_CALLER, functions),
        (columns["path_parent"], NO_PARENT, paths),
        (columns["path_function"], 0, functions),
        (columns["sample_path"], 0, paths),
        (np.asarray([*batch.failures, *batch.empty], dtype=np.int64), 0, files),
    ):
        if len(column) and not (least <= int(column.min()) and int(column.max()) < end):
            raise ValueError("a number that points at nothing")
    for ends, length in ((columns["row_ends"], rows), (columns["sample_ends"], samples)):
        if (np.diff(ends, prepend=0) < 0).any() or (length and not files) or (files and ends[-1] != length):
            raise ValueError("rows out of order")
    if (columns["path_parent"] >= np.arange(paths)).any():
        raise ValueError("paths out of order")


def in_range(batch: RawBatch) -> bool:
    """Tell whether all values of a batch are finite and in range."""
    columns = batch.columns
    for counts in (columns["calls"], columns["primitive_calls"]):
        if len(counts) and (counts.min() < NOT_COUNTED or counts.max() > LARGEST_COUNT):
            return False
    for seconds in (columns["self_seconds"], columns["cumulative_seconds"], columns["sample_self_seconds"]):
        if len(seconds) and not np.abs(seconds).max() <= LARGEST_SECONDS:
            return False
    return True


def finish(batch: RawBatch) -> DecodedBatch:
    """Number what occurs in several rows, and add up what coincides.

    Args:
        batch: with numpy's columns, as `read_parts` and `arrays` give them.
    """
    columns = batch.columns
    width = len(batch.functions) + 1
    pairs = columns["function"].astype(np.int64) * width + columns["caller"] + 1
    entries, row_entry = numbered(pairs, width * width)
    files = np.arange(len(columns["row_ends"]), dtype=np.int32)
    decoded = DecodedBatch(
        files=len(files),
        functions=batch.functions,
        entry_function=(entries // width).astype(np.int32),
        entry_caller=(entries % width - 1).astype(np.int32),
        row_file=np.repeat(files, np.diff(columns["row_ends"], prepend=0)),
        row_entry=row_entry.astype(np.int32),
        calls=counted(columns["calls"]),
        primitive_calls=counted(columns["primitive_calls"]),
        self_seconds=columns["self_seconds"],
        cumulative_seconds=columns["cumulative_seconds"],
        path_parent=columns["path_parent"],
        path_function=columns["path_function"],
        sample_file=np.repeat(files, np.diff(columns["sample_ends"], prepend=0)),
        sample_path=columns["sample_path"],
        sample_self_seconds=columns["sample_self_seconds"],
        failures=batch.failures,
        empty=batch.empty,
    )
    if batch.shared_names:
        decoded = summed(decoded)
    return without_unused(decoded) if batch.failures else decoded


def numbered(values: Ints, end: int) -> tuple[Ints, Ints]:
    """Return the distinct values, all below `end`, and each value's place among them."""
    if end > SMALL_TABLE:
        return np.unique(values, return_inverse=True)
    places = np.zeros(end, dtype=np.int64)
    places[values] = 1
    distinct = np.flatnonzero(places)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[values]


def counted(counts: Ints) -> Ints:
    """Return call counts; those that were not counted are 0."""
    return np.where(counts == NOT_COUNTED, 0, counts)


def summed(batch: DecodedBatch) -> DecodedBatch:
    """Add up rows of the same file and entry: names that differ only by an address coincide."""
    keys = batch.row_file.astype(np.int64) * (len(batch.entry_function) + 1) + batch.row_entry
    order = np.argsort(keys, kind="stable")
    if not len(keys) or not (np.diff(keys[order]) == 0).any():
        return batch
    starts = np.flatnonzero(np.concatenate([[True], np.diff(keys[order]) != 0]))
    first = order[starts]
    sums: dict[str, Any] = {name: np.add.reduceat(getattr(batch, name)[order], starts) for name in MEASURES}
    return replace(batch, row_file=batch.row_file[first], row_entry=batch.row_entry[first], **sums)


def without_unused(batch: DecodedBatch) -> DecodedBatch:
    """Drop the names that no row uses: those of files that failed half way."""
    entries, row_entry = np.unique(batch.row_entry, return_inverse=True)
    used_paths = np.zeros(len(batch.path_parent), dtype=np.bool_)
    used_paths[batch.sample_path] = True
    for path in range(len(used_paths) - 1, -1, -1):
        if used_paths[path] and batch.path_parent[path] != NO_PARENT:
            used_paths[batch.path_parent[path]] = True
    paths = np.flatnonzero(used_paths)
    callers = batch.entry_caller[entries]
    functions = np.unique(
        np.concatenate([batch.entry_function[entries], callers[callers != NO_CALLER], batch.path_function[paths]])
    )
    function_place = place_of(functions, len(batch.functions))
    path_place = place_of(paths, len(used_paths))
    return replace(
        batch,
        functions=[batch.functions[number] for number in functions.tolist()],
        entry_function=function_place[batch.entry_function[entries]],
        entry_caller=function_place[callers],
        row_entry=row_entry.astype(np.int32),
        path_parent=path_place[batch.path_parent[paths]],
        path_function=function_place[batch.path_function[paths]],
        sample_path=path_place[batch.sample_path],
    )


def place_of(numbers: Ids | npt.NDArray[np.int64], count: int) -> Ids:
    """Map each old number to its new one; the last element maps -1 (no caller, no parent) to itself."""
    places = np.full(count + 1, -1, dtype=np.int32)
    places[numbers] = np.arange(len(numbers), dtype=np.int32)
    return places
