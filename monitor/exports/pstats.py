"""Tables as a pstats dictionary or file: what `pstats.Stats`, snakeviz and gprof2dot load. Pure."""

from __future__ import annotations

import marshal
from typing import TypeAlias

from monitor.profiles.columns import FunctionName
from monitor.tables import Measures, StatsTable

CallerValue: TypeAlias = tuple[int, int, float, float]
Value: TypeAlias = tuple[int, int, float, float, dict[FunctionName, CallerValue]]


def to_pstats(table: StatsTable) -> bytes:
    """Marshal a table as cProfile would.

    A function that only occurs as a caller gets an entry of zeros, which readers of the format expect.
    """
    stats = pstats_dictionary(table)
    mentioned = {caller for value in stats.values() for caller in value[4]}
    for name in mentioned - stats.keys():
        stats[name] = (0, 0, 0.0, 0.0, {})
    return marshal.dumps(stats)


def pstats_dictionary(table: StatsTable) -> dict[FunctionName, Value]:
    """Build the dictionary that `pstats.Stats.stats` holds.

    A value is (primitive calls, total calls, …) but a caller's tuple is (total calls, primitive calls, …): CPython
    writes them so.
    """
    names = table.names
    callers: dict[int, dict[FunctionName, CallerValue]] = {}
    if table.callers is not None:
        for function, caller, value in zip(
            table.callers.function.tolist(),
            table.callers.caller.tolist(),
            values_of(table.callers.measures, "calls", "primitive_calls"),
            strict=True,
        ):
            callers.setdefault(function, {})[names[caller]] = value
    own = values_of(table.measures, "primitive_calls", "calls")
    return {
        names[function]: (*value, callers.get(function, {}))
        for function, value in zip(table.function.tolist(), own, strict=True)
    }


def values_of(measures: Measures, first: str, second: str) -> zip[CallerValue]:
    """Return rows of (one count, other count, self seconds, cumulative seconds)."""
    counts = (getattr(measures, first), getattr(measures, second))
    columns = (*counts, measures.self_seconds, measures.cumulative_seconds)
    return zip(*(column.tolist() for column in columns), strict=True)
