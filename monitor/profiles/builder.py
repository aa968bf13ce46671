"""Collects decoded profiles into one batch, on one table of names. Pure; a file that fails leaves nothing behind."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.errors import CorruptFile, IncompleteFile
from monitor.profiles.columns import NO_CALLER, NO_PARENT, DecodedBatch, Failure, FunctionName, Ids, Ints
from monitor.profiles.names import drop_addresses, safe_text

NOT_COUNTED = -1
"""pyinstrument's pstats export writes this for the calls that it does not count; stored as 0."""
LARGEST_COUNT = 2**53
LARGEST_SECONDS = 1e9


class KnownFunction:
    """A function of the batch: its number, its own entry, and its entries by caller (raw key -> entry)."""

    __slots__ = ("callers", "entry", "number")

    def __init__(self, number: int, entry: int) -> None:
        self.number = number
        self.entry = entry
        self.callers: dict[Any, int] = {}


class BatchBuilder:
    """Grows one batch file by file.

    Attributes:
        known: function key as it stands in a file -> what is known of it; kept over the files of the batch, so that the
            cleaning and numbering of a name is done once.
    """

    def __init__(self) -> None:
        self.known: dict[Any, KnownFunction] = {}
        self._functions: dict[FunctionName, int] = {}
        self._entries: dict[tuple[int, int], int] = {}
        self._paths: dict[tuple[int, int], int] = {}
        self._entry = array("i")
        self._calls, self._primitive = array("q"), array("q")
        self._own, self._total = array("d"), array("d")
        self._sample_path, self._sample_seconds = array("i"), array("d")
        self._row_ends: list[int] = []
        self._sample_ends: list[int] = []
        self._failures: dict[int, Failure] = {}
        self._empty: list[int] = []
        self._shared_names = False

    # -- for decoders ----------------------------------------------------------------------------------------------

    def learn(self, key: object) -> KnownFunction:
        """Number a function by its raw key (file, line, name).

        Raises:
            CorruptFile: the key is not that.
        """
        if type(key) is not tuple or [type(part) for part in key] != [str, int, str]:
            raise CorruptFile("a key is not (file, line, name)")
        file, line, name = key
        if not -(2**31) <= line < 2**31:
            raise CorruptFile(f"a line number of {line.bit_length()} bits is out of range")
        clean = (safe_text(file), line, safe_text(drop_addresses(name)))
        number = self._functions.setdefault(clean, len(self._functions))
        if number < len(self._functions) - 1:
            self._shared_names = True
        known = self.known[key] = KnownFunction(number, self.pair(number, NO_CALLER))
        return known

    def learn_caller(self, function: KnownFunction, caller_key: object) -> int:
        """Number the pair of a function and a caller, given by its raw key."""
        entry = function.callers.get(caller_key)
        if entry is None:
            caller = self.known.get(caller_key) or self.learn(caller_key)
            entry = function.callers[caller_key] = self.pair(function.number, caller.number)
        return entry

    def pair(self, function: int, caller: int) -> int:
        """Number a pair of function and caller numbers."""
        return self._entries.setdefault((function, caller), len(self._entries))

    def path(self, parent: int, function: int) -> int:
        """Number a call path by its parent path (NO_PARENT for a root) and the function at its end."""
        return self._paths.setdefault((parent, function), len(self._paths))

    def add_rows(
        self,
        entry: Sequence[int],
        calls: Sequence[int],
        primitive: Sequence[int],
        own: Sequence[float],
        total: Sequence[float],
    ) -> None:
        """Add entry rows of the file in hand; raises TypeError or OverflowError where a value is not what it must be."""
        self._entry.extend(entry)
        self._calls.extend(calls)
        self._primitive.extend(primitive)
        self._own.extend(own)
        self._total.extend(total)

    def add_samples(self, path: Sequence[int], seconds: Sequence[float]) -> None:
        """Add path rows of the file in hand; a path occurs once."""
        self._sample_path.extend(path)
        self._sample_seconds.extend(seconds)

    def note_empty(self) -> None:
        """Say that the file in hand is known to hold nothing."""
        self._empty.append(len(self._row_ends))

    # -- for the batch ---------------------------------------------------------------------------------------------

    def end_file(self) -> None:
        """Keep the rows of the file in hand."""
        self._row_ends.append(len(self._entry))
        self._sample_ends.append(len(self._sample_path))

    def fail_file(self, error: CorruptFile) -> None:
        """Take back the rows of the file in hand and note why it failed."""
        kind = getattr(error, "kind", "incomplete" if isinstance(error, IncompleteFile) else "corrupt")
        self._failures[len(self._row_ends)] = Failure(reason=error.reason, kind=kind)
        rows = self._row_ends[-1] if self._row_ends else 0
        for column in (self._entry, self._calls, self._primitive, self._own, self._total):
            del column[rows:]
        samples = self._sample_ends[-1] if self._sample_ends else 0
        for column in (self._sample_path, self._sample_seconds):
            del column[samples:]
        self.end_file()

    def build(self) -> DecodedBatch:
        """Return the batch, its numbers unchecked."""
        entries = np.asarray(list(self._entries), dtype=np.int32).reshape(-1, 2)
        paths = np.asarray(list(self._paths), dtype=np.int32).reshape(-1, 2)
        files = np.arange(len(self._row_ends), dtype=np.int32)
        batch = DecodedBatch(
            files=len(files),
            functions=list(self._functions),
            entry_function=entries[:, 0].copy(),
            entry_caller=entries[:, 1].copy(),
            row_file=np.repeat(files, np.diff(self._row_ends, prepend=0)),
            row_entry=np.array(self._entry, dtype=np.int32),
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
    sums = {name: np.add.reduceat(getattr(batch, name)[order], starts) for name in MEASURES}
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
