"""Tables as a pstats file: what `pstats.Stats`, snakeviz and gprof2dot load. Pure."""

from __future__ import annotations

import marshal

from monitor.profiles.columns import FunctionName
from monitor.tables import StatsTable, function_rows

CallerValue = tuple[int, int, float, float]
Value = tuple[int, int, float, float, dict[FunctionName, CallerValue]]


def to_pstats(table: StatsTable) -> bytes:
    """Marshal a table as cProfile would.

    A value is (primitive calls, total calls, …) but a caller's tuple is (total calls, primitive calls, …): CPython
    writes them so. A function that only occurs as a caller gets an entry of zeros, which readers of the format expect.
    """
    stats: dict[FunctionName, Value] = {}
    mentioned: set[FunctionName] = set()
    for row in function_rows(table):
        callers = {
            caller.key: (
                caller.calls or 0,
                caller.primitive_calls or 0,
                caller.self_seconds,
                caller.cumulative_seconds,
            )
            for caller in row.callers or ()
        }
        mentioned.update(callers)
        stats[row.key] = (
            row.primitive_calls or 0,
            row.calls or 0,
            row.self_seconds,
            row.cumulative_seconds,
            callers,
        )
    for name in mentioned - stats.keys():
        stats[name] = (0, 0, 0.0, 0.0, {})
    return marshal.dumps(stats)
