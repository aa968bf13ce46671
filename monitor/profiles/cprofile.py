"""pstats files (cProfile's marshalled dictionary) to columns. Pure, but `marshal` is not safe on hostile bytes: run
it in a process of its own.

Facts about the format: a value is (primitive calls, total calls, self s, cumulative s, callers), but a caller's tuple
is (total calls, primitive calls, self s, cumulative s): CPython's `Lib/cProfile.py`, `snapshot_stats`, writes them so.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

from monitor.errors import CorruptFile, IncompleteFile
from monitor.profiles.builder import LARGEST_COUNT, LARGEST_SECONDS, NOT_COUNTED, BatchBuilder
from monitor.profiles.raw import NO_CALLER

SAMPLED_KEY = ("__sampled__",)
"""Python 3.15's sampling profiler marks its files with this extra key."""


LEAST_ROW_BYTES = 8
SPARE_BYTES = 1024


def add_cprofile(builder: BatchBuilder, data: bytes) -> None:
    """Decode one file into a batch.

    Only shapes and types are checked here; ranges are checked for the whole batch at once, see `decode_batch`.

    Raises:
        IncompleteFile: the bytes end too early.
        CorruptFile: they are no pstats dictionary; the reason says where.
    """
    stats = load(data)
    stats.pop(SAMPLED_KEY, None)
    try:
        add_stats(builder, stats, len(data))
    except CorruptFile:
        check_stats(stats)
        raise
    except (TypeError, ValueError, AttributeError, OverflowError, LookupError) as error:
        check_stats(stats)
        raise CorruptFile("is no pstats dictionary") from error


def check_size(rows: int, size_bytes: int) -> None:
    """Refuse a file whose functions share their dictionaries of callers: a few bytes would become millions of rows.

    In a file that a profiler wrote, each row has bytes of its own.
    """
    if rows * LEAST_ROW_BYTES > size_bytes + SPARE_BYTES:
        raise CorruptFile(f"holds {rows} rows in {size_bytes} bytes, which no profiler writes")


def check_cprofile(data: bytes) -> None:
    """Raise CorruptFile for the first value of a file that has a wrong type or is out of range."""
    stats = load(data)
    stats.pop(SAMPLED_KEY, None)
    check_stats(stats)


def load(data: bytes) -> dict[Any, Any]:
    """Unmarshal a dictionary."""
    options: dict[str, Any] = {"allow_code": False} if sys.version_info >= (3, 13) else {}
    try:
        stats = marshal.loads(data, **options)
    except EOFError:
        raise IncompleteFile("the file ends before its data does") from None
    except (ValueError, TypeError, MemoryError, RecursionError, OverflowError, SystemError) as error:
        raise CorruptFile(f"not a marshalled pstats dictionary: {str(error) or type(error).__name__}") from error
    if type(stats) is not dict:
        raise CorruptFile(f"holds a {type(stats).__name__}, not a pstats dictionary")
    return stats


def add_stats(builder: BatchBuilder, stats: dict[Any, Any], size_bytes: int) -> None:
    """Add a dictionary's rows, column by column; any exception means that its shape is wrong.

    This is the hot path of catching up: it is written so that its loops run inside the interpreter's own functions.
    """
    if not stats:
        return
    primitive, calls, own, total, callers = zip(*stats.values(), strict=True)
    callers_each = list(map(len, callers))
    check_size(len(callers) + sum(callers_each), size_bytes)
    functions = builder.number_all(stats)
    builder.add_rows(functions, [NO_CALLER] * len(functions), calls, primitive, own, total)
    edges = list(chain.from_iterable(map(dict.values, callers)))
    if not edges:
        return
    try:
        calls, primitive, own, total = zip(*edges, strict=True)
    except TypeError:  # the pure-Python `profile`, and sampled files, only count
        edges = [value if type(value) is tuple else (value, value, 0.0, 0.0) for value in edges]
        calls, primitive, own, total = zip(*edges, strict=True)
    called = list(chain.from_iterable(map(repeat, functions, callers_each)))
    builder.add_rows(called, builder.number_all(list(chain.from_iterable(callers))), calls, primitive, own, total)


def check_stats(stats: dict[Any, Any]) -> None:
    """Raise CorruptFile for the first thing that is wrong with a dictionary."""
    for key, value in stats.items():
        check_key(key, "a key")
        where = f"function {shown(key)}"
        if type(value) is not tuple or len(value) != 5:
            raise CorruptFile(f"{where} has {shown(value)} in place of (calls, calls, seconds, seconds, callers)")
        check_numbers(value[:4], where)
        if type(value[4]) is not dict:
            raise CorruptFile(f"the callers of {where} are {shown(value[4])}, not a dictionary")
        for caller, numbers in value[4].items():
            check_key(caller, f"a caller of {where}")
            if type(numbers) is tuple and len(numbers) == 4:
                check_numbers(numbers, f"caller {shown(caller)} of {where}")
            elif type(numbers) is not int:
                raise CorruptFile(f"caller {shown(caller)} of {where} has {shown(numbers)}, not four numbers")
            else:
                check_numbers((numbers, numbers, 0.0, 0.0), f"caller {shown(caller)} of {where}")


def check_key(key: object, what: str) -> None:
    """Raise CorruptFile unless a key is (file, line, name)."""
    if type(key) is not tuple or [type(part) for part in key] != [str, int, str]:
        raise CorruptFile(f"{what} is {shown(key)}, not (file, line, name)")
    if not -(2**31) <= key[1] < 2**31:
        raise CorruptFile(f"the line of {what}, {shown(key)}, is out of range")


def check_numbers(values: Iterable[object], where: str) -> None:
    """Raise CorruptFile unless the values are two counts and two times in range."""
    counts, times = list(values)[:2], list(values)[2:]
    for count in counts:
        if type(count) is not int or not NOT_COUNTED <= count <= LARGEST_COUNT:
            raise CorruptFile(f"{where} has the call count {shown(count)}")
    for time in times:
        if type(time) not in (float, int) or not abs(time) <= LARGEST_SECONDS:  # type: ignore[arg-type]
            raise CorruptFile(f"{where} has the time {shown(time)}")


def shown(value: object) -> str:
    """Print a value from a file, shortened; its repr may be huge or fail."""
    if isinstance(value, (tuple, list, dict, set, frozenset)):
        parts = [shown_part(part) for part in list(chain(value))[:5]]
        return f"{type(value).__name__}({', '.join(parts)}{', …' if len(value) > 5 else ''})"
    return shown_part(value)


def shown_part(value: object) -> str:
    """Print one plain value, shortened."""
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}…"
    return f"a {type(value).__name__}"
