"""Collects decoded profiles into one batch, on one table of names. Pure; a file that fails leaves nothing behind."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.errors import CorruptFile, IncompleteFile
from monitor.profiles.columns import NO_CALLER, NO_PARENT, DecodedBatch, Failure, FunctionName, Ids, Ints
from monitor.profiles.names import drop_addresses, safe_text

NOT_COUNTED = -1
"""pyinstrument's pstats export writes this for calls that it does not count; stored as 0."""
LARGEST_COUNT = 2**40
"""More calls than a span can hold; sums over millions of spans still fit into 64 bits."""
LARGEST_SECONDS = 1e9
SMALL_TABLE = 2**20
"""Up to so many possible values a table is faster than sorting."""


class BatchBuilder:
    """Grows one batch file by file.

    Attributes:
        numbers: function key as it stands in a file -> its number; kept over the files of the batch, so that a name is
            cleaned and numbered once.
    """

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self._functions: dict[FunctionName, int] = {}
        self._paths: dict[tuple[int, int], int] = {}
        self._function, self._caller = array("i"), array("i")
        self._calls, self._primitive = array("q"), array("q")
        self._own, self._total = array("d"), array("d")
        self._sample_path, self._sample_seconds = array("i"), array("d")
        self._row_ends: list[int] = []
        self._sample_ends: list[int] = []
        self._failures: dict[int, Failure] = {}
        self._empty: list[int] = []
        self._shared_names = False

    # -- for decoders ----------------------------------------------------------------------------------------------

    def number_all(self, keys: Collection[Any]) -> list[int]:
        """Number functions by their raw keys (file, line, name).

        Raises:
            CorruptFile, TypeError: a key is not that.
        """
        found = list(map(self.numbers.get, keys))
        if None in found:
            return [self.number(key) for key in keys]
        return found  # type: ignore[return-value]

    def number(self, key: Any) -> int:
        """Number one function by its raw key; raises CorruptFile where the key is not one."""
        number = self.numbers.get(key)
        return self._learn(key) if number is None else number

    def _learn(self, key: Any) -> int:
        if type(key) is not tuple or [type(part) for part in key] != [str, int, str]:
            raise CorruptFile("a key is not (file, line, name)")
        file, line, name = key
        if not -(2**31) <= line < 2**31:
            raise CorruptFile(f"a line number of {line.bit_length()} bits is out of range")
        clean = (safe_text(file), line, safe_text(drop_addresses(name)))
        known = len(self._functions)
        number = self.numbers[key] = self._functions.setdefault(clean, known)
        self._shared_names |= number < known
        return number

    def path(self, parent: int, function: int) -> int:
        """Number a call path by its parent path (NO_PARENT for a root) and the function at its end."""
        return self._paths.setdefault((parent, function), len(self._paths))

    def add_rows(
        self,
        function: Sequence[int],
        caller: Sequence[int],
        calls: Sequence[int],
        primitive: Sequence[int],
        own: Sequence[float],
        total: Sequence[float],
    ) -> None:
        """Add entry rows of the file in hand; raises TypeError or OverflowError where a value has the wrong type.

        Args:
            caller: NO_CALLER for the function's own row.
        """
        self._function += array("i", function)
        self._caller += array("i", caller)
        self._calls += array("q", calls)
        self._primitive += array("q", primitive)
        self._own += array("d", own)
        self._total += array("d", total)

    def add_samples(self, path: Sequence[int], seconds: Sequence[float]) -> None:
        """Add path rows of the file in hand; a path occurs once."""
        self._sample_path.extend(path)
        self._sample_seconds.extend(seconds)

    @property
    def rows(self) -> int:
        """How many rows all files have so far."""
        return len(self._function) + len(self._sample_path)

    def note_empty(self) -> None:
        """Say that the file in hand is known to hold nothing."""
        self._empty.append(len(self._row_ends))

    # -- for the batch ---------------------------------------------------------------------------------------------

    def end_file(self) -> None:
        """Keep the rows of the file in hand."""
        self._row_ends.append(len(self._function))
        self._sample_ends.append(len(self._sample_path))

    def fail_file(self, error: CorruptFile) -> None:
        """Take back the rows of the file in hand and note why it failed."""
        kind = getattr(error, "kind", "incomplete" if isinstance(error, IncompleteFile) else "corrupt")
        self._failures[len(self._row_ends)] = Failure(reason=error.reason, kind=kind)
        rows = self._row_ends[-1] if self._row_ends else 0
        for column in (self._function, self._caller, self._calls, self._primitive, self._own, self._total):
            del column[rows:]
        samples = self._sample_ends[-1] if self._sample_ends else 0
        for column in (self._sample_path, self._sample_seconds):
            del column[samples:]
        self.end_file()

    def build(self) -> DecodedBatch:
        """Return the batch, its numbers unchecked."""
        width = len(self._functions) + 1
        pairs = np.array(self._function, dtype=np.int64) * width + np.array(self._caller, dtype=np.int64) + 1
        entries, row_entry = numbered(pairs, width * width)
        paths = np.asarray(list(self._paths), dtype=np.int32).reshape(-1, 2)
        files = np.arange(len(self._row_ends), dtype=np.int32)
        batch = DecodedBatch(
            files=len(files),
            functions=list(self._functions),
            entry_function=(entries // width).astype(np.int32),
            entry_caller=(entries % width - 1).astype(np.int32),
            row_file=np.repeat(files, np.diff(self._row_ends, prepend=0)),
            row_entry=row_entry.astype(np.int32),
            calls=counted(self._calls),
            primitive_calls=counted(self._primitive),
            self_seconds=np.array(self._own, dtype=np.float64),
            cumulative_seconds=np.array(self._total, dtype=np.float64),
            path_parent=paths[:, 0].copy(),
            path_function=paths[:, 1].copy(),
            sample_file=np.repeat(files, np.diff(self._sample_ends, prepend=0)),
            sample_path=np.array(self._sample_path, dtype=np.int32),
            sample_self_seconds=np.array(self._sample_seconds, dtype=np.float64),
            failures=self._failures,
            empty=self._empty,
        )
        if self._shared_names:
            batch = summed(batch)
        return without_unused(batch) if self._failures else batch


def numbered(values: Ints, end: int) -> tuple[Ints, Ints]:
    """Return the distinct values, all below `end`, and each value's place among them."""
    if end > SMALL_TABLE:
        return np.unique(values, return_inverse=True)
    places = np.zeros(end, dtype=np.int64)
    places[values] = 1
    distinct = np.flatnonzero(places)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[values]


def counted(counts: Sequence[int]) -> Ints:
    """Make a column of call counts; those that were not counted are 0."""
    column = np.array(counts, dtype=np.int64)
    column[column == NOT_COUNTED] = 0
    return column


def in_range(batch: DecodedBatch) -> bool:
    """Tell whether all values of a batch are finite and in range."""
    for counts in (batch.calls, batch.primitive_calls):
        if len(counts) and (counts.min() < 0 or counts.max() > LARGEST_COUNT):
            return False
    for seconds in (batch.self_seconds, batch.cumulative_seconds, batch.sample_self_seconds):
        if len(seconds) and not np.abs(seconds).max() <= LARGEST_SECONDS:
            return False
    return True


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


MEASURES = ("calls", "primitive_calls", "self_seconds", "cumulative_seconds")


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
