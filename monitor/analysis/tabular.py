"""What every result that holds functions can do: become a DataFrame, be grouped, filtered, compared and shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import pandas as pd

from monitor.analysis.display import SHOWN_ROWS, spans_title, to_notebook_html
from monitor.comparison import Comparison, compare
from monitor.errors import ArgumentError
from monitor.grouping import APPLICATION, GROUPINGS, GroupBy, GroupTable, group_table, package_of
from monitor.profiles.columns import FunctionName
from monitor.tables import StatsTable, sort_table

ResultT = TypeVar("ResultT")
CHANGES = ("self_seconds", "cumulative_seconds", "self_seconds_per_call")


class Tabular(Protocol):
    """A result that holds functions."""

    @property
    def table(self) -> StatsTable:
        """The functions, added up."""


class FunctionResult(Generic[ResultT]):
    """Base of results that hold a table of functions.

    Attributes:
        spans: how many spans were added up.
        from_seconds, to_seconds: earliest start and latest end of them, seconds since the epoch.
    """

    def __init__(self, make: Callable[[], StatsTable]) -> None:
        self._make: Callable[[], StatsTable] | None = make

    @cached_property
    def table(self) -> StatsTable:
        """The functions, added up when first looked at."""
        if self._make is None:
            raise RuntimeError("the table was made already")
        table = self._make()
        self._make = None  # it may keep a whole analysis alive
        return table

    def _filtered(self, keep: Callable[[FunctionName], bool]) -> ResultT:
        """Return a result of the same kind with the functions that are wanted."""
        raise NotImplementedError

    @property
    def spans(self) -> int:
        """How many spans were added up."""
        return self.table.spans

    @property
    def from_seconds(self) -> float | None:
        """The earliest start, seconds since the epoch."""
        return self.table.from_seconds

    @property
    def to_seconds(self) -> float | None:
        """The latest end, seconds since the epoch."""
        return self.table.to_seconds

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row for each function, largest self time first.

        Columns: file, line, name; for cProfile also primitive_calls and calls; self_seconds, cumulative_seconds.
        """
        return table_frame(sort_table(self.table, "self"))

    def group_by(self, by: GroupBy) -> GroupedStats:
        """Add functions up by where they come from.

        Args:
            by: "package" (torch, numpy, application code, standard library, built-in), "module" or "file".
        """
        if by not in GROUPINGS:
            raise ArgumentError("by", by, f"must be one of {', '.join(GROUPINGS)}")
        return GroupedStats(group_table(self.table, by), by, counts_calls=self.table.counts_calls)

    def only(self, *, package: str | None = None, path: str | None = None) -> ResultT:
        """Keep the functions of one package, or those whose file matches a regular expression anywhere, or both.

        Times are those of the functions that stay; what they called still counts in their cumulative time.
        """
        if package is None and path is None:
            raise ArgumentError("package", package, "give package or path, or both")
        try:
            pattern = None if path is None else re.compile(path)
        except (re.error, TypeError) as error:
            raise ArgumentError("path", path, f"must be a regular expression ({error})") from None
        if pattern is not None and not isinstance(pattern.pattern, str):
            raise ArgumentError("path", path, "must be a regular expression in text, not in bytes")

        def keep(name: FunctionName) -> bool:
            fits = package is None or package_of(name) == package
            return fits and (pattern is None or pattern.search(name[0]) is not None)

        return self._filtered(keep)

    def application_code(self) -> ResultT:
        """Keep the functions that are neither installed packages nor the standard library nor built in."""
        return self.only(package=APPLICATION)

    def diff(self, after: Tabular, *, ignore_lines: bool = False) -> StatsDiff:
        """Compare with a later result: what got slower or faster, what is new and what is gone.

        Args:
            ignore_lines: match functions by file and name only; lines move when code is edited.
        """
        return diff(self, after, ignore_lines=ignore_lines)

    def __getstate__(self) -> dict[str, Any]:
        """Keep the table and forget what it was made of, so that results can be pickled."""
        return {"table": self.table, "_make": None}

    def _title(self) -> str:
        return spans_title("Functions", self.spans, self.from_seconds, self.to_seconds)

    def _repr_html_(self) -> str:
        """Show the largest functions in a notebook."""
        shown = table_frame(sort_table(self.table, "self", SHOWN_ROWS))
        return to_notebook_html(self._title(), shown, len(self.table.function))


@dataclass(frozen=True, slots=True, repr=False)
class GroupedStats:
    """Functions added up by module, package or file, largest self time first."""

    groups: GroupTable
    by: GroupBy
    counts_calls: bool

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row for each group.

        `cumulative_seconds` is the time from entering the group to leaving it; time in a group that is entered anew
        from inside itself through another one counts for each entry.
        """
        groups = self.groups
        columns: dict[str, Any] = {self.by: groups.names, "functions": groups.functions}
        if self.counts_calls:
            columns |= {"primitive_calls": groups.primitive_calls, "calls": groups.calls}
        columns |= {"self_seconds": groups.self_seconds, "cumulative_seconds": groups.cumulative_seconds}
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        return self.to_dataframe().head(SHOWN_ROWS).to_string()

    def _repr_html_(self) -> str:
        """Show the largest groups in a notebook."""
        frame = self.to_dataframe()
        return to_notebook_html(f"Functions by {self.by}", frame.head(SHOWN_ROWS), len(frame))


class StatsDiff:
    """Two results beside each other; all numbers are per span, so that ranges of different length compare."""

    def __init__(self, comparison: Comparison, *, counts_calls: bool) -> None:
        self.comparison = comparison
        self.counts_calls = counts_calls

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row for each function of either result, the largest change of self time first.

        Columns: file, line, name; status ("both", "new" or "gone"); for self_seconds, cumulative_seconds and with
        cProfile calls and self_seconds_per_call: the value before, the value after and the change, each per span.
        """
        both, before, after = self.comparison, self.comparison.before, self.comparison.after
        columns: dict[str, Any] = dict(zip(("file", "line", "name"), columns_of_names(both.names), strict=True))
        columns["status"] = [
            "both" if was and is_now else "new" if is_now else "gone"
            for was, is_now in zip(before.present, after.present, strict=True)
        ]
        pairs = {
            "self_seconds": (before.self_seconds, after.self_seconds),
            "cumulative_seconds": (before.cumulative_seconds, after.cumulative_seconds),
        }
        if self.counts_calls:
            pairs |= {
                "calls": (before.calls, after.calls),
                "self_seconds_per_call": (before.per_call(), after.per_call()),
            }
        for name, (was, now) in pairs.items():
            columns |= {f"{name}_before": was, f"{name}_after": now, f"{name}_change": now - was}
        frame = pd.DataFrame(columns)
        order = frame["self_seconds_change"].abs().sort_values(ascending=False, kind="stable").index
        return frame.loc[order].reset_index(drop=True)

    def slower(self, by: str = "self_seconds") -> pd.DataFrame:
        """Return the functions of both results that take longer in the later one, the largest change first.

        Args:
            by: "self_seconds", "cumulative_seconds" or, with cProfile, "self_seconds_per_call".
        """
        return self._changed(by, ascending=False)

    def faster(self, by: str = "self_seconds") -> pd.DataFrame:
        """Return the functions of both results that take less time in the later one, the largest change first."""
        return self._changed(by, ascending=True)

    @property
    def new(self) -> pd.DataFrame:
        """The functions that only the later result has."""
        return self._of("new")

    @property
    def gone(self) -> pd.DataFrame:
        """The functions that only the earlier result has."""
        return self._of("gone")

    def _of(self, status: str) -> pd.DataFrame:
        frame = self.to_dataframe()
        return frame[frame["status"] == status].reset_index(drop=True)

    def _changed(self, by: str, *, ascending: bool) -> pd.DataFrame:
        allowed = CHANGES if self.counts_calls else CHANGES[:2]
        if by not in allowed:
            raise ArgumentError("by", by, f"must be one of {', '.join(allowed)}")
        frame = self._of("both").sort_values(f"{by}_change", ascending=ascending, kind="stable")
        change = frame[f"{by}_change"]
        return frame[change < 0 if ascending else change > 0].reset_index(drop=True)

    def __repr__(self) -> str:
        frame = self.to_dataframe().head(SHOWN_ROWS)
        return frame[["name", "status", "self_seconds_before", "self_seconds_after", "self_seconds_change"]].to_string()

    def _repr_html_(self) -> str:
        """Show the largest changes in a notebook."""
        frame = self.to_dataframe()
        both = self.comparison
        title = f"Change per span, from {both.spans_before:,} to {both.spans_after:,} spans"
        return to_notebook_html(title, frame.head(SHOWN_ROWS), len(frame))


def diff(before: Tabular, after: Tabular, *, ignore_lines: bool = False) -> StatsDiff:
    """Compare two results of one profiler; see `StatsDiff`.

    Raises:
        ArgumentError: one of them is no result, or they are of different profilers.
    """
    for name, result in (("before", before), ("after", after)):
        if not isinstance(getattr(result, "table", None), StatsTable):
            raise ArgumentError(name, result, "must be a result of an analysis; None means that nothing was found")
    if before.table.counts_calls != after.table.counts_calls:
        raise ArgumentError("after", after, "is of another profiler: counted calls and samples do not compare")
    counts_calls = before.table.counts_calls
    return StatsDiff(compare(before.table, after.table, ignore_lines=ignore_lines), counts_calls=counts_calls)


def table_frame(table: StatsTable) -> pd.DataFrame:
    """Lay a table out in its order."""
    names = [table.names[function] for function in table.function.tolist()]
    columns: dict[str, Any] = dict(zip(("file", "line", "name"), columns_of_names(names), strict=True))
    if table.counts_calls:
        columns |= {"primitive_calls": table.measures.primitive_calls, "calls": table.measures.calls}
    columns |= {
        "self_seconds": table.measures.self_seconds,
        "cumulative_seconds": table.measures.cumulative_seconds,
    }
    return pd.DataFrame(columns)


def columns_of_names(names: Sequence[FunctionName]) -> tuple[list[str], list[int], list[str]]:
    """Turn names into columns of file, line and name."""
    return [name[0] for name in names], [name[1] for name in names], [name[2] for name in names]
