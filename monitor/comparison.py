"""Two tables of functions beside each other: what got slower or faster, what is new and what is gone. Pure.

Numbers are per span, since two questions seldom select equally many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from monitor.profiles.columns import Floats, FunctionName, Ints
from monitor.tables import StatsTable

Places: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two, columns of equal length; zeros where a function does not occur.

    Attributes:
        present: where it does. calls, self_seconds, cumulative_seconds: per span.
    """

    present: Sequence[bool]
    calls: Floats
    self_seconds: Floats
    cumulative_seconds: Floats

    def per_call(self) -> Floats:
        """Return self seconds a call; NaN where there was none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values: Floats = np.where(self.calls > 0, self.self_seconds / self.calls, np.nan)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All functions of either table, in the order of first sight.

    Attributes:
        names: (file, line, name); the line is 0 where lines were ignored.
        spans_before, spans_after: what the numbers were divided by.
    """

    names: list[FunctionName]
    before: Side
    after: Side
    spans_before: int
    spans_after: int


def compare(before: StatsTable, after: StatsTable, *, ignore_lines: bool = False) -> Comparison:
    """Match two tables by file, line and name.

    Args:
        ignore_lines: match by file and name only, and add up what then coincides: lines move when code is edited.
    """
    numbers: dict[FunctionName, int] = {}

    def number(table: StatsTable) -> Places:
        keys = (key_of(name, ignore_lines) for name in named(table))
        return np.asarray([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)

    places = [number(table) for table in (before, after)]
    sides = [side_of(table, place, len(numbers)) for table, place in zip((before, after), places, strict=True)]
    return Comparison(
        names=list(numbers), before=sides[0], after=sides[1], spans_before=before.spans, spans_after=after.spans
    )


def named(table: StatsTable) -> list[FunctionName]:
    """Return the names of a table's functions."""
    return [table.names[function] for function in table.function.tolist()]


def key_of(name: FunctionName, ignore_lines: bool) -> FunctionName:
    """Return what a function is matched by."""
    return (name[0], 0, name[2]) if ignore_lines else name


def side_of(table: StatsTable, place: Places, count: int) -> Side:
    """Lay out one table by the common numbers, per span."""
    spans = max(table.spans, 1)

    def column(values: Ints | Floats) -> Floats:
        sums: Floats = np.bincount(place, weights=values, minlength=count) / spans
        return sums

    present = np.zeros(count, dtype=np.bool_)
    present[place] = True
    measures = table.measures
    return Side(
        present=present.tolist(),
        calls=column(measures.calls),
        self_seconds=column(measures.self_seconds),
        cumulative_seconds=column(measures.cumulative_seconds),
    )
