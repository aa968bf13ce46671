"""Profiles, names and query strings made from a fuzzer's bytes: mostly right, and wrong in every place in turn.

A fuzzer that only flips bytes seldom gets past the first check. These spend its bytes on choices, so that what is wrong
lies deep inside what is right.
"""

from __future__ import annotations

import json
import marshal
from typing import Any, Protocol

from monitor.spans import MODES_BY_WORD, PHASES_BY_WORD


class Provider(Protocol):
    """What is used of atheris.FuzzedDataProvider."""

    def ConsumeBool(self) -> bool: ...
    def ConsumeInt(self, size: int) -> int: ...
    def ConsumeIntInRange(self, least: int, most: int) -> int: ...
    def ConsumeFloat(self) -> float: ...
    def ConsumeUnicode(self, count: int) -> str: ...
    def ConsumeBytes(self, count: int) -> bytes: ...
    def remaining_bytes(self) -> int: ...


LONG = "n" * 10_000
TEXTS = (
    "forward",
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "~",
    "<built-in method len>",
    "<object at 0x7f00aa> at 0x1",
    "",
    "\udc80",
    'quote"\\\n\r\x00\x85\u2028',
    "e\u0301 漢 \U0001f600 \u202e",
    LONG,
)
ODD: tuple[Any, ...] = (
    None,
    True,
    "text",
    b"bytes",
    float("nan"),
    float("inf"),
    -float("inf"),
    1e9,
    1e300,
    -1,
    -2,
    2**31,
    2**40,
    2**40 + 1,
    2**63,
    2**70,
    10**400,
    1j,
    (),
    (1, 2, 3, 4),
    [],
    {},
    frozenset({1}),
    ...,
)
"""What may stand in any place of a profile."""
ODD_IN_A_KEY = tuple(value for value in ODD if not isinstance(value, (list, dict)))


def pick(data: Provider, values: Any) -> Any:
    """Choose one of some values."""
    return values[data.ConsumeIntInRange(0, len(values) - 1)]


def seldom(data: Provider) -> bool:
    """True once in 32 times."""
    return data.ConsumeIntInRange(0, 31) == 31


def text(data: Provider) -> str:
    """Make a text: a known one, or any."""
    return data.ConsumeUnicode(12) if data.ConsumeBool() else str(pick(data, TEXTS))


def count(data: Provider) -> Any:
    """Make a count of calls."""
    return pick(data, ODD) if seldom(data) else data.ConsumeIntInRange(-1, 1000)


def seconds(data: Provider) -> Any:
    """Make a time."""
    if seldom(data):
        return pick(data, ODD)
    return data.ConsumeFloat() if seldom(data) else data.ConsumeIntInRange(-1, 4000) / 64


def key(data: Provider) -> Any:
    """Make a function's key."""
    made = (text(data), pick(data, ODD_IN_A_KEY) if seldom(data) else data.ConsumeInt(2), text(data))
    if seldom(data):
        return pick(data, (made[:2], made[0], (*made, 1), ("__sampled__",), None))
    return made


def callers(data: Provider, keys: list[Any]) -> Any:
    """Make a dictionary of callers."""
    if seldom(data):
        return pick(data, ODD)
    made: dict[Any, Any] = {}
    for _ in range(data.ConsumeIntInRange(0, 3)):
        caller = pick(data, keys) if keys and data.ConsumeBool() else key(data)
        numbers = (count(data), count(data), seconds(data), seconds(data))
        made[caller] = pick(data, (numbers[:3], 5, numbers[0], *ODD)) if seldom(data) else numbers
    return made


def stats_bytes(data: Provider) -> bytes:
    """Make a file as cProfile leaves it."""
    stats: dict[Any, Any] = {}
    keys: list[Any] = []
    shared: list[Any] = []
    for _ in range(data.ConsumeIntInRange(0, 5)):
        keys.append(key(data))
        mine = pick(data, shared) if shared and seldom(data) else callers(data, keys)
        shared.append(mine)
        value = (count(data), count(data), seconds(data), seconds(data), mine)
        stats[keys[-1]] = pick(data, (value[:4], (*value, 1), list(value), *ODD)) if seldom(data) else value
    whole: Any = pick(data, (list(stats), tuple(stats), *ODD)) if seldom(data) else stats
    made = marshal.dumps(whole, data.ConsumeIntInRange(0, 4))
    return made[: data.ConsumeIntInRange(0, len(made))] if seldom(data) else made


def frame(data: Provider, depth: int) -> Any:
    """Make a frame of pyinstrument with its children."""
    if seldom(data):
        return pick(data, JSON_ODD)
    made: dict[str, Any] = {
        "function": "[self]" if seldom(data) else text(data),
        "file_path": text(data),
        "line_no": pick(data, JSON_ODD) if seldom(data) else data.ConsumeInt(2),
        "time": pick(data, JSON_ODD) if seldom(data) else seconds(data),
    }
    if depth and data.ConsumeBool():
        made["children"] = [frame(data, depth - 1) for _ in range(data.ConsumeIntInRange(0, 2))]
    if seldom(data):
        made[pick(data, ("children", "function", "file_path", "file_path_short"))] = pick(data, JSON_ODD)
    if seldom(data):
        made.pop(pick(data, list(made)))
    return made


JSON_ODD = tuple(value for value in ODD if isinstance(value, (str, int, float, list, dict, tuple, type(None))))


def session_bytes(data: Provider) -> bytes:
    """Make a session as pyinstrument leaves it."""
    made: Any = {"root_frame": frame(data, 5), "duration": 1.0}
    if seldom(data):
        made = pick(data, ({"root_frame": None}, {}, [], *JSON_ODD))
    written = json.dumps(made, ensure_ascii=data.ConsumeBool(), default=repr)
    encoded = written.encode(pick(data, ("utf-8", "latin-1", "utf-16")), "backslashreplace")
    return encoded[: data.ConsumeIntInRange(0, len(encoded))] if seldom(data) else encoded


NUMBERS = (
    "0",
    "*",
    "10",
    "1796116656916859.8",
    "1e3",
    "1e400",
    "9223372036854775806",
    "9223372036854775807",
    "٣",
    "-1",
)


def name_text(data: Provider) -> str:
    """Make the name of a span's folder, in either layout."""
    if data.ConsumeBool():
        ends = [
            "-".join(
                (
                    word(data, tuple(MODES_BY_WORD)),
                    word(data, NUMBERS),
                    word(data, tuple(PHASES_BY_WORD)),
                    word(data, NUMBERS),
                )
            )
            for _ in range(2)
        ]
        return "_".join(ends)
    return "_".join((word(data, NUMBERS), word(data, NUMBERS), word(data, TEXTS), word(data, NUMBERS)))


def word(data: Provider, known: tuple[str, ...]) -> str:
    """Choose a known word, or seldom any."""
    return data.ConsumeUnicode(20) if seldom(data) else str(pick(data, known))


def path_text(data: Provider) -> str:
    """Make a path below a base folder."""
    parts = [
        word(data, ("framework", "..", "")),
        word(data, ("pytorch", ".", "..", "", "a\nb")),
        word(data, ("cprofile", "cProfile", "pyinstrument", "other")),
        word(data, ("0-algo-1", "..", "", *TEXTS)),
        name_text(data),
        word(data, ("python_stats", "python_stats.json", "python_stats.html", "x")),
    ]
    return "/".join(parts[data.ConsumeIntInRange(0, 2) :])


QUERY_WORDS = (
    *("0", "1", "100", "007", "-1", "1e9", "nan", "inf", "1e400", str(2**63), "9" * 5000, "٣", "²", "1_0"),
    *("true", "false", "any", "cprofile", "pyinstrument", "original", "documented", "ends", "self", "calls"),
    *("json", "pstats", "tree", "folded", "csv", "profiles", "html", "initialization", "training_loop"),
    *MODES_BY_WORD,
    *PHASES_BY_WORD,
    *TEXTS,
)


def query_pairs(data: Provider, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Make the parameters of a request."""
    return [(word(data, names), word(data, QUERY_WORDS)) for _ in range(data.ConsumeIntInRange(0, 6))]
