"""Tables of functions: the answer to a question, and how tables are sorted, cut and added up. Pure; knows no ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from monitor.profiles.columns import Floats, FunctionName, Ids, Ints

SortKey: TypeAlias = Literal["self", "cumulative", "calls", "primitive_calls"]
SORT_KEYS: tuple[SortKey, ...] = ("self", "cumulative", "calls", "primitive_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Four columns of equal length: what a profiler knows about each row."""

    calls: Ints
    primitive_calls: Ints
    self_seconds: Floats
    cumulative_seconds: Floats

    def take(self, rows: Ids | Ints) -> Measures:
        """Pick rows by position."""
        return Measures(
            calls=self.calls[rows],
            primitive_calls=self.primitive_calls[rows],
            self_seconds=self.self_seconds[rows],
            cumulative_seconds=self.cumulative_seconds[rows],
        )

    def copy(self) -> Measures:
        """Return columns that nobody else changes."""
        return Measures(
            calls=self.calls.copy(),
            primitive_calls=self.primitive_calls.copy(),
            self_seconds=self.self_seconds.copy(),
            cumulative_seconds=self.cumulative_seconds.copy(),
        )

    def column(self, key: SortKey) -> Ints | Floats:
        """Return the column that a sort key names."""
        columns: dict[SortKey, Ints | Floats] = {
            "self": self.self_seconds,
            "cumulative": self.cumulative_seconds,
            "calls": self.calls,
            "primitive_calls": self.primitive_calls,
        }
        return columns[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerTable:
    """Which part of each function came through which caller.

    Attributes:
        function, caller: positions in `StatsTable.names`, shape (edges,).
        measures: shape (edges,); calls are total calls, as in `StatsTable`.
    """

    function: Ids
    caller: Ids
    measures: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsTable:
    """The functions of some spans, added up.

    Attributes:
        spans: how many spans were added.
        from_seconds, to_seconds: earliest start and latest end of them, seconds since the epoch; None without spans.
        counts_calls: False where the profiler is a sampler, whose call counts are all 0 and mean nothing.
        names: (file, line, name); the columns below hold positions in it.
        function: shape (functions,), each name at most once.
        measures: shape (functions,).
        callers: None where they were not asked for.
    """

    spans: int
    from_seconds: float | None
    to_seconds: float | None
    counts_calls: bool
    names: Sequence[FunctionName]
    function: Ids
    measures: Measures
    callers: CallerTable | None = None


def sort_table(table: StatsTable, by: SortKey, limit: int | None = None) -> StatsTable:
    """Order functions by a measure, largest first, and keep the first `limit`.

    Ties stand in the order of file, line and name, so that equal questions get equal answers. Callers of functions
    that are cut go with them.
    """
    column = table.measures.column(by)
    order = np.argsort(-column, kind="stable")
    if np.any(np.diff(column[order]) == 0):
        names = [table.names[position] for position in table.function[order].tolist()]
        values = column[order].tolist()
        ranked = sorted(range(len(names)), key=lambda row: (-values[row], names[row]))
        order = order[np.asarray(ranked, dtype=np.int64)]
    if limit is not None:
        order = order[:limit]
    callers = table.callers
    if callers is not None and limit is not None:
        kept = np.isin(callers.function, table.function[order])
        rows = np.flatnonzero(kept)
        callers = CallerTable(
            function=callers.function[rows], caller=callers.caller[rows], measures=callers.measures.take(rows)
        )
    return replace(table, function=table.function[order], measures=table.measures.take(order), callers=callers)


class FunctionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One function, or the part of it that came through one caller, as answers show it.

    Calls are None where the profiler counts none. In a row of `callers`, the name is the caller's and the numbers are
    the function's.
    """

    file: str
    line: int
    name: str
    primitive_calls: int | None
    calls: int | None
    self_seconds: float
    cumulative_seconds: float
    callers: list[FunctionRow] | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> FunctionName:
        """File, line and name."""
        return self.file, self.line, self.name


def function_rows(table: StatsTable) -> list[FunctionRow]:
    """Turn a table into rows, in its order; callers stand in the order of their self time, largest first."""
    if table.callers is None:
        return rows_of(table, table.function, table.measures)
    by_function: dict[int, list[FunctionRow]] = {function: [] for function in table.function.tolist()}
    edges = rows_of(table, table.callers.caller, table.callers.measures)
    for function, row in zip(table.callers.function.tolist(), edges, strict=True):
        by_function.setdefault(function, []).append(row)
    for rows in by_function.values():
        rows.sort(key=lambda row: (-row.self_seconds, row.key))
    lists = [by_function[function] for function in table.function.tolist()]
    return rows_of(table, table.function, table.measures, lists)


def rows_of(
    table: StatsTable, names: Ids, measures: Measures, callers: Sequence[list[FunctionRow]] | None = None
) -> list[FunctionRow]:
    """Turn columns into rows."""
    none = [None] * len(names)
    counted = table.counts_calls
    columns = (
        names.tolist(),
        measures.primitive_calls.tolist() if counted else none,
        measures.calls.tolist() if counted else none,
        measures.self_seconds.tolist(),
        measures.cumulative_seconds.tolist(),
        [msgspec.UNSET] * len(names) if callers is None else callers,
    )
    text = table.names
    return [FunctionRow(*text[name], *numbers) for name, *numbers in zip(*columns, strict=True)]
