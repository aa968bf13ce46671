"""Tables as CSV (RFC 4180): one row a function, or with callers one row a function and one each of its callers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from monitor.tables import StatsTable, function_rows

COLUMNS = ("file", "line", "name", "primitive_calls", "calls", "self_seconds", "cumulative_seconds")
CALLER_COLUMNS = ("caller_file", "caller_line", "caller_name")


def to_csv(tables: Iterable[tuple[Sequence[str], StatsTable]], leading: Sequence[str], *, callers: bool) -> str:
    """Write tables one below the other.

    Args:
        tables: each with the values of its leading columns (its phase).
        leading: the names of these columns.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*leading, *COLUMNS, *(CALLER_COLUMNS if callers else ())])
    for values, table in tables:
        for row in function_rows(table):
            own = [*values, *row.key, row.primitive_calls, row.calls, row.self_seconds, row.cumulative_seconds]
            writer.writerow([*own, "", "", ""] if callers else own)
            for caller in row.callers or ():
                part = [caller.primitive_calls, caller.calls, caller.self_seconds, caller.cumulative_seconds]
                writer.writerow([*values, *row.key, *part, *caller.key])
    return out.getvalue()
