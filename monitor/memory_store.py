"""Rows kept in memory, for the notebook classes: the two sums that questions need, without a database. No I/O.

A database in memory answers a small question in about a millisecond, most of it the statement; the original's slowest
part of one is listing a folder. Here rows lie in one growing column for each measure, those of a span side by side, so
that the sum of a few spans costs what adding up their rows costs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from monitor.catalog import Catalog, CatalogMark
from monitor.profiles.columns import Floats, Ids
from monitor.rows import ProfileRows, SpanRows
from monitor.sums import grown
from monitor.tables import Measures

Columns: TypeAlias = dict[str, npt.NDArray[Any]]

ROW_COLUMNS = ("calls", "primitive_calls", "self_seconds", "cumulative_seconds")
FEW_RUNS = 64


class Rows:
    """Columns of equal length, and where the rows of each span begin."""

    def __init__(self, **types: npt.DTypeLike) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(0, dtype=kind) for name, kind in types.items()}
        self._length = 0
        self._begin = np.zeros(1, dtype=np.int64)
        self._spans = 0

    def append(self, last_span: int, span: Ids, columns: Columns) -> None:
        """Add rows of spans up to `last_span`, ordered by span."""
        until = self._length + len(span)
        for name, values in columns.items():
            column = self._columns[name]
            if until > len(column):
                column = np.empty(max(until, 2 * len(column)), dtype=column.dtype)
                column[: self._length] = self._columns[name][: self._length]
            column[self._length : until] = values
            self._columns[name] = column
        numbers = np.arange(self._spans, last_span + 1)
        self._begin = grown(self._begin, last_span + 2)
        self._begin[self._spans + 1 : last_span + 2] = self._length + np.searchsorted(span, numbers, side="right")
        self._length, self._spans = until, last_span + 1

    def of(self, spans: Ids) -> Columns:
        """Return the rows of some spans, given by rising numbers."""
        breaks = np.flatnonzero(np.diff(spans) != 1) + 1
        firsts, lasts = spans[np.r_[0, breaks]], spans[np.r_[breaks - 1, len(spans) - 1]]
        begins, ends = self._begin[firsts], self._begin[lasts + 1]
        if len(firsts) == 1:
            run = slice(int(begins[0]), int(ends[0]))
            return {name: column[run] for name, column in self._columns.items()}
        if len(firsts) <= FEW_RUNS:
            runs = [slice(begin, end) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
            return {name: np.concatenate([column[run] for run in runs]) for name, column in self._columns.items()}
        lengths = ends - begins
        place = np.arange(int(lengths.sum())) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
        return {name: column[place] for name, column in self._columns.items()}

    @property
    def size_bytes(self) -> int:
        """Memory that is filled."""
        return sum(column[: self._length].nbytes for column in self._columns.values())


class MemoryStore:
    """What ingest commits to and questions are added up from. One thread writes while others read what is there."""

    def __init__(self) -> None:
        self._rows = Rows(
            entry=np.int32,
            calls=np.int64,
            primitive_calls=np.int64,
            self_seconds=np.float64,
            cumulative_seconds=np.float64,
        )
        self._samples = Rows(path=np.int32, self_seconds=np.float64)

    def commit(self, spans: SpanRows, profiles: ProfileRows, catalog: Catalog, since: CatalogMark) -> CatalogMark:
        """Keep the rows of a batch; the catalogue is in memory already."""
        last = int(spans.number[-1])
        columns: Columns = {name: getattr(profiles.measures, name) for name in ROW_COLUMNS}
        self._rows.append(last, profiles.span, columns | {"entry": profiles.entry})
        samples: Columns = {"path": profiles.sample_path, "self_seconds": profiles.sample_self_seconds}
        self._samples.append(last, profiles.sample_span, samples)
        return catalog.mark()

    def sum_entries(self, spans: Ids) -> tuple[Ids, Measures]:
        """Add up the entry rows of some spans, given by their rising numbers."""
        if not len(spans):
            zeros = np.zeros(0, dtype=np.int64)
            return np.empty(0, dtype=np.int32), Measures(
                calls=zeros, primitive_calls=zeros, self_seconds=np.zeros(0), cumulative_seconds=np.zeros(0)
            )
        rows = self._rows.of(spans)
        entry = rows["entry"]
        present = np.flatnonzero(np.bincount(entry))
        return present.astype(np.int32), Measures(
            calls=whole_sums(entry, rows["calls"])[present],
            primitive_calls=whole_sums(entry, rows["primitive_calls"])[present],
            self_seconds=float_sums(entry, rows["self_seconds"])[present],
            cumulative_seconds=float_sums(entry, rows["cumulative_seconds"])[present],
        )

    def sum_paths(self, spans: Ids) -> tuple[Ids, Floats]:
        """Add up the sampled seconds of some spans by path."""
        if not len(spans):
            return np.empty(0, dtype=np.int32), np.empty(0)
        rows = self._samples.of(spans)
        present = np.flatnonzero(np.bincount(rows["path"]))
        return present.astype(np.int32), float_sums(rows["path"], rows["self_seconds"])[present]

    @property
    def size_bytes(self) -> int:
        """Memory that the rows fill."""
        return self._rows.size_bytes + self._samples.size_bytes


LARGEST_EXACT = 2**53
"""Up to here a float64, in which numpy adds up weights, holds every whole number."""


def float_sums(number: Ids, values: Floats) -> Floats:
    """Add up values by number."""
    return np.bincount(number, weights=values).astype(np.float64, copy=False)


def whole_sums(number: Ids, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add up whole numbers by number, exactly."""
    sums = np.bincount(number, weights=values)
    if np.abs(sums).max(initial=0.0) < LARGEST_EXACT:
        return sums.astype(np.int64)
    exact = np.zeros(len(sums), dtype=np.int64)
    np.add.at(exact, number, values)
    return exact
