"""The catalogue of names: every function, caller pair, call path and metric label gets one small number, once.

Numbers are given in order of first sight and never change, so columns of numbers stay valid for the life of a store.
Only one task interns; any thread may read, because the lists only grow. No I/O: the store asks what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.profiles.columns import NO_CALLER, NO_PARENT, DecodedBatch, FunctionName, Ids
from monitor.profiles.names import function_label


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogMark:
    """How many of each kind there are; two marks bound what was added between them."""

    functions: int = 0
    entries: int = 0
    paths: int = 0
    labels: int = 0
    series: int = 0
    folders: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interned:
    """A batch's local numbers -> the catalogue's: `entry[local entry]`, `path[local path]`."""

    entry: Ids
    path: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesKey:
    """Who wrote a row of spans with which profiler."""

    job: str
    framework: str
    profiler: str
    node: str


class Growing:
    """An int32 column that grows by doubling; `view` is what is filled."""

    __slots__ = ("_data", "_length")

    def __init__(self) -> None:
        self._data = np.empty(1024, dtype=np.int32)
        self._length = 0

    def append(self, value: int) -> None:
        if self._length == len(self._data):
            self._data = np.concatenate([self._data, np.empty_like(self._data)])
        self._data[self._length] = value
        self._length += 1

    @property
    def view(self) -> Ids:
        return self._data[: self._length]


class Catalog:
    """Interns names. All sequences are indexed by the numbers they give.

    Attributes:
        functions: (file, line, name) of each function.
        labels: text of each metric label; several functions may share one.
        series: who wrote, one for each job, framework, profiler and node.
        folders: node folders, as paths or keys, that hold span folders.
    """

    def __init__(self) -> None:
        self.functions: list[FunctionName] = []
        self.labels: list[str] = []
        self.series: list[SeriesKey] = []
        self.folders: list[str] = []
        self._series_ids: dict[SeriesKey, int] = {}
        self._folder_ids: dict[str, int] = {}
        self._function_ids: dict[FunctionName, int] = {}
        self._label_ids: dict[str, int] = {}
        self._entry_ids: dict[int, int] = {}
        self._path_ids: dict[int, int] = {}
        self._function_label = Growing()
        self._entry_function = Growing()
        self._entry_caller = Growing()
        self._path_parent = Growing()
        self._path_function = Growing()

    @property
    def function_label(self) -> Ids:
        """Label of each function, shape (functions,)."""
        return self._function_label.view

    @property
    def entry_function(self) -> Ids:
        """Function of each entry, shape (entries,)."""
        return self._entry_function.view

    @property
    def entry_caller(self) -> Ids:
        """Caller of each entry, or NO_CALLER for the function's own entry, shape (entries,)."""
        return self._entry_caller.view

    @property
    def path_parent(self) -> Ids:
        """Parent path of each path, or NO_PARENT; parents have smaller numbers. Shape (paths,)."""
        return self._path_parent.view

    @property
    def path_function(self) -> Ids:
        """Function at the end of each path, shape (paths,)."""
        return self._path_function.view

    def mark(self) -> CatalogMark:
        """Say how much there is now."""
        return CatalogMark(
            functions=len(self.functions),
            entries=len(self._entry_ids),
            paths=len(self._path_ids),
            labels=len(self.labels),
            series=len(self.series),
            folders=len(self.folders),
        )

    def intern(self, batch: DecodedBatch) -> Interned:
        """Number everything a batch names. What is new is added."""
        functions = np.fromiter(
            (self.function(name) for name in batch.functions), dtype=np.int64, count=len(batch.functions)
        )
        callers = np.where(
            batch.entry_caller == NO_CALLER, NO_CALLER, functions[batch.entry_caller] if len(functions) else NO_CALLER
        )
        keys = (functions[batch.entry_function] << 32) | (callers + 1)
        entry = np.fromiter((self._entry(key) for key in keys.tolist()), dtype=np.int32, count=len(keys))
        return Interned(entry=entry, path=self._intern_paths(batch, functions.tolist()))

    def function(self, name: FunctionName) -> int:
        """Number one function, adding it and its label when they are new."""
        number = self._function_ids.get(name)
        if number is None:
            number = self._add_function(name, self._label(function_label(*name)))
        return number

    def series_number(self, key: SeriesKey) -> int:
        """Number one series."""
        number = self._series_ids.setdefault(key, len(self.series))
        if number == len(self.series):
            self.series.append(key)
        return number

    def find_series(self, key: SeriesKey) -> int | None:
        """Return a series' number, or None where it has no spans; adds nothing."""
        return self._series_ids.get(key)

    def folder_number(self, path: str) -> int:
        """Number one node folder."""
        number = self._folder_ids.setdefault(path, len(self.folders))
        if number == len(self.folders):
            self.folders.append(path)
        return number

    def load(
        self,
        *,
        series: Sequence[SeriesKey],
        folders: Sequence[str],
        labels: Sequence[str],
        functions: Sequence[FunctionName],
        function_label: Ids,
        entries: tuple[Ids, Ids],
        paths: tuple[Ids, Ids],
    ) -> None:
        """Fill an empty catalogue with what a store kept, in the order of its numbers."""
        for key in series:
            self.series_number(key)
        for path in folders:
            self.folder_number(path)
        for label in labels:
            self._label(label)
        for name, label_number in zip(functions, function_label.tolist(), strict=True):
            self._add_function(name, label_number)
        for function, caller in zip(*(column.tolist() for column in entries), strict=True):
            self._entry((function << 32) | (caller + 1))
        for parent, function in zip(*(column.tolist() for column in paths), strict=True):
            self._path(parent, function)

    def _intern_paths(self, batch: DecodedBatch, functions: list[int]) -> Ids:
        numbers: list[int] = []
        for parent, function in zip(batch.path_parent.tolist(), batch.path_function.tolist(), strict=True):
            above = NO_PARENT if parent == NO_PARENT else numbers[parent]
            numbers.append(self._path(above, functions[function]))
        return np.asarray(numbers, dtype=np.int32)

    def _add_function(self, name: FunctionName, label: int) -> int:
        number = len(self.functions)
        self.functions.append(name)
        self._function_label.append(label)
        self._function_ids[name] = number
        return number

    def _label(self, text: str) -> int:
        number = self._label_ids.setdefault(text, len(self.labels))
        if number == len(self.labels):
            self.labels.append(text)
        return number

    def _entry(self, key: int) -> int:
        number = self._entry_ids.get(key)
        if number is None:
            number = len(self._entry_ids)
            self._entry_function.append(key >> 32)
            self._entry_caller.append((key & 0xFFFFFFFF) - 1)
            self._entry_ids[key] = number
        return number

    def _path(self, parent: int, function: int) -> int:
        key = ((parent + 1) << 32) | function
        number = self._path_ids.get(key)
        if number is None:
            number = len(self._path_ids)
            self._path_parent.append(parent)
            self._path_function.append(function)
            self._path_ids[key] = number
        return number
