"""Running sums of measures by a number (an entry, a label). Pure. Only numbers that occur take room, but for four bytes
of look-up each. Addition is plain float64, one value after the other: the same rows in the same order give the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monitor.profiles.columns import Floats, Ids, Ints
from monitor.tables import Measures

ScalarT = TypeVar("ScalarT", bound=np.generic)


class Sums:
    """Sums that grow as numbers come."""

    __slots__ = ("_calls", "_cumulative", "_length", "_number", "_primitive", "_self", "_slot")

    def __init__(self) -> None:
        self._slot = np.full(0, -1, dtype=np.int32)
        self._number = np.empty(0, dtype=np.int32)
        self._calls = np.zeros(0, dtype=np.int64)
        self._primitive = np.zeros(0, dtype=np.int64)
        self._self = np.zeros(0)
        self._cumulative = np.zeros(0)
        self._length = 0

    def add(self, number: Ids, measures: Measures) -> None:
        """Add rows in the order given; numbers may repeat."""
        slots = self._slots(number).astype(np.intp)  # what numpy adds at fastest
        np.add.at(self._calls, slots, measures.calls)
        np.add.at(self._primitive, slots, measures.primitive_calls)
        np.add.at(self._self, slots, measures.self_seconds)
        np.add.at(self._cumulative, slots, measures.cumulative_seconds)

    def all(self) -> tuple[Ids, Measures]:
        """Return the numbers in order of first sight, and their sums, as views."""
        kept = slice(0, self._length)
        measures = Measures(
            calls=self._calls[kept],
            primitive_calls=self._primitive[kept],
            self_seconds=self._self[kept],
            cumulative_seconds=self._cumulative[kept],
        )
        return self._number[kept], measures

    def _slots(self, number: Ids) -> Ids:
        if not len(number):
            return number
        top = int(number.max()) + 1
        if top > len(self._slot):
            self._slot = grown(self._slot, top, fill=-1)
        slots: Ids = self._slot[number]
        unknown = slots < 0
        if unknown.any():
            self._admit(number[unknown])
            slots = self._slot[number]
        return slots

    def _admit(self, number: Ids) -> None:
        new, first = np.unique(number, return_index=True)
        new = new[np.argsort(first)]
        length = self._length + len(new)
        self._number = grown(self._number, length)
        self._calls = grown(self._calls, length)
        self._primitive = grown(self._primitive, length)
        self._self = grown(self._self, length)
        self._cumulative = grown(self._cumulative, length)
        self._number[self._length : length] = new
        self._slot[new] = np.arange(self._length, length, dtype=np.int32)
        self._length = length


def merge_sums(parts: Sequence[tuple[Ids, Measures]]) -> tuple[Ids, Measures]:
    """Add up what several sums hold."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Sums().all()
    numbers = np.concatenate([number for number, _ in parts])
    present = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.intp)
    present[numbers] = 1
    distinct = np.flatnonzero(present)
    present[distinct] = np.arange(len(distinct))
    place = present[numbers]

    def counts(name: str) -> Ints:
        total = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(total, place, np.concatenate([getattr(measures, name) for _, measures in parts]))
        return total

    def seconds(name: str) -> Floats:
        values = np.concatenate([getattr(measures, name) for _, measures in parts])
        return np.bincount(place, weights=values, minlength=len(distinct)).astype(np.float64, copy=False)

    return distinct.astype(np.int32), Measures(
        calls=counts("calls"),
        primitive_calls=counts("primitive_calls"),
        self_seconds=seconds("self_seconds"),
        cumulative_seconds=seconds("cumulative_seconds"),
    )


def merge_paths(parts: Sequence[Floats]) -> tuple[Ids, Floats]:
    """Add up sampled seconds by path; returns the paths that have any."""
    totals = np.zeros(max((len(part) for part in parts), default=0))
    for part in parts:
        totals[: len(part)] += part
    path = np.flatnonzero(totals).astype(np.int32)
    return path, totals[path]


def grown(column: npt.NDArray[ScalarT], length: int, *, fill: int = 0) -> npt.NDArray[ScalarT]:
    """Return the column with room for `length` values, twice as large as before where it must grow."""
    if length <= len(column):
        return column
    bigger = np.full(max(length, 2 * len(column), 64), fill, dtype=column.dtype)
    bigger[: len(column)] = column
    return bigger
