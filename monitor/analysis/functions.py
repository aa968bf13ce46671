"""Results of cProfile: the original library's classes and attributes, on tables of this project."""

from __future__ import annotations

import pstats
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from monitor.analysis.arguments import whole_number
from monitor.analysis.tabular import FunctionResult
from monitor.errors import ArgumentError
from monitor.exports.pstats import Value, pstats_dictionary
from monitor.grouping import keep_functions
from monitor.profiles.columns import FunctionName
from monitor.tables import CallerTable, Measures, StatsTable


class Metrics(Enum):
    """What functions can be sorted by; the value is the word that `pstats.Stats.sort_stats` takes."""

    TOTAL_TIME = "tottime"
    """Seconds in the function itself."""
    CUMULATIVE_TIME = "cumtime"
    """Seconds in the function and in all that it calls."""
    PRIMITIVE_CALLS = "pcalls"
    """Calls that were not recursive."""
    TOTAL_CALLS = "ncalls"
    """All calls."""


class cProfileFunctionStats:
    """One function.

    Attributes:
        function_name: "file:line(name)".
        prim_calls, total_calls: calls without recursive ones, and all.
        total_time, cumulative_time: seconds in the function itself, and with all that it calls.
        callers: names of the functions that call it.
    """

    def __init__(self, key: FunctionName, value: Value) -> None:
        self.function_name = pstats.func_std_string(key)  # type: ignore[attr-defined]
        self.prim_calls, self.total_calls, self.total_time, self.cumulative_time, callers = value
        self.callers: list[str] = [pstats.func_std_string(caller) for caller in callers]  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return repr(
            {
                "function name": self.function_name,
                "# of primitive calls": self.prim_calls,
                "# of total calls": self.total_calls,
                "total time": self.total_time,
                "cumulative time": self.cumulative_time,
            }
        )


class Recorded:
    """Stands for a profile towards `pstats.Stats`, which takes its dictionary."""

    def __init__(self, stats: Mapping[FunctionName, Value]) -> None:
        self.stats = stats

    def create_stats(self) -> None:
        """Do nothing: the dictionary is there."""


class cProfileStats(FunctionResult["cProfileStats"]):
    """The functions of some spans, added up.

    Attributes:
        ps: a full `pstats.Stats`; memory addresses are dropped from names, so that runs and nodes merge.
        function_stats_list: one cProfileFunctionStats for each function.
    """

    def __init__(self, ps: pstats.Stats) -> None:
        table = table_of(stats_of(ps))
        super().__init__(lambda: table)
        self.ps = ps
        self._stdout = sys.stdout

    @classmethod
    def of_table(cls, make: Callable[[], StatsTable]) -> cProfileStats:
        """Make a result of a table that is added up when it is first looked at."""
        made = cls.__new__(cls)
        FunctionResult.__init__(made, make)
        return made

    @cached_property
    def ps(self) -> pstats.Stats:
        """The functions as a `pstats.Stats`; what is done to it (`strip_dirs`, `add`) changes nothing else here."""
        stats = pstats_dictionary(self.table)
        self._stdout = sys.stdout
        return pstats.Stats(Recorded(stats)) if stats else pstats.Stats()  # type: ignore[arg-type]

    @cached_property
    def function_stats_list(self) -> list[cProfileFunctionStats]:
        """One record for each function."""
        return [cProfileFunctionStats(key, value) for key, value in pstats_dictionary(self.table).items()]

    def print_top_n_functions(self, by: Metrics, n: int = 10) -> None:
        """Print the first functions by a metric, largest first.

        Raises:
            ArgumentError: `by` is no Metrics, or `n` no whole number of functions.
        """
        word = by.value if isinstance(by, Enum) else None
        if not isinstance(word, str) or word not in {metric.value for metric in Metrics}:
            names = ", ".join(metric.name for metric in Metrics)
            raise ArgumentError("by", by, f"must be a member of Metrics: {names}")
        allowed = "must be a whole number of functions, 0 or more"
        if isinstance(n, str) or (n := whole_number("n", n, allowed)) < 0:
            raise ArgumentError("n", n, allowed)
        ps: Any = self.ps
        if ps.stream is self._stdout:  # a notebook may have replaced the standard output since
            ps.stream = self._stdout = sys.stdout
        self.ps.sort_stats(word).print_stats(n)

    def get_function_stats(self) -> pd.DataFrame:
        """Return one row for each function: function_name, prim_calls, total_calls, total_time and cumulative_time in
        seconds, and callers, a list of names. (The original returned texts.)"""
        columns = ("function_name", "prim_calls", "total_calls", "total_time", "cumulative_time", "callers")
        rows = [[getattr(function, column) for column in columns] for function in self.function_stats_list]
        return pd.DataFrame(rows, columns=list(columns))

    def _filtered(self, keep: Callable[[FunctionName], bool]) -> cProfileStats:
        table = keep_functions(self.table, keep)
        return cProfileStats.of_table(lambda: table)

    def __repr__(self) -> str:
        return f"<cProfileStats: {self._title()}>"


def stats_of(ps: pstats.Stats) -> dict[FunctionName, Value]:
    """Return the dictionary inside a `pstats.Stats`."""
    stats: dict[FunctionName, Value] = ps.stats  # type: ignore[attr-defined]
    return stats


def table_of(stats: Mapping[FunctionName, Value]) -> StatsTable:
    """Lay a pstats dictionary out as a table of one span of unknown time."""
    names = list(dict.fromkeys([*stats, *(caller for value in stats.values() for caller in value[4])]))
    number = {name: place for place, name in enumerate(names)}
    edges = [(key, caller, numbers) for key, value in stats.items() for caller, numbers in value[4].items()]
    return StatsTable(
        spans=1,
        from_seconds=None,
        to_seconds=None,
        counts_calls=True,
        names=names,
        function=np.asarray([number[key] for key in stats], dtype=np.int32),
        measures=measures_of([(value[1], value[0], value[2], value[3]) for value in stats.values()]),
        callers=CallerTable(
            function=np.asarray([number[key] for key, _, _ in edges], dtype=np.int32),
            caller=np.asarray([number[caller] for _, caller, _ in edges], dtype=np.int32),
            measures=measures_of([as_counted(numbers) for _, _, numbers in edges]),
        ),
    )


def as_counted(numbers: tuple[int, int, float, float] | int) -> tuple[int, int, float, float]:
    """Read a caller's numbers; the pure-Python `profile` only counts its calls."""
    return (numbers, numbers, 0.0, 0.0) if isinstance(numbers, int) else numbers


def measures_of(rows: list[tuple[int, int, float, float]]) -> Measures:
    """Turn rows of (calls, primitive calls, self seconds, cumulative seconds) into columns."""
    return Measures(
        calls=np.asarray([row[0] for row in rows], dtype=np.int64),
        primitive_calls=np.asarray([row[1] for row in rows], dtype=np.int64),
        self_seconds=np.asarray([row[2] for row in rows], dtype=np.float64),
        cumulative_seconds=np.asarray([row[3] for row in rows], dtype=np.float64),
    )
