"""Names of every kind that Unicode has, with quotes, line breaks and 10,000 characters, and profiles that hold them."""

from __future__ import annotations

import marshal
import sys
import unicodedata
from collections.abc import Iterator, Sequence

LONG = 10_000
A_CLASS = 3
"""So many characters of each of Unicode's classes are used."""


def characters() -> dict[str, list[str]]:
    """Return some characters of each class: letters, marks, digits, signs, controls, surrogates, unassigned ones."""
    found: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        of_class = found.setdefault(unicodedata.category(chr(code)), [])
        if len(of_class) < A_CLASS:
            of_class.append(chr(code))
    return found


def names() -> Iterator[str]:
    """Give names that break what is careless."""
    yield from (f"{name}{''.join(some)}{name}" for name, some in sorted(characters().items()))
    yield from (
        'a"b',
        "a\\b",
        "a\nb",
        "a\r\nb",
        'a",node="x',
        "{}=,",
        "a\\",
        '"',
        "\n",
        "\t",
        " ",
        "'; DROP TABLE span; --",
    )
    yield from ("# HELP x", "x 1\ny 2", "\u2028", "\ufeff", "\u202eleft", "e\u0301", "\x00", "\x1b[31mred")
    yield "l" * LONG
    yield '"\n\\' * (LONG // 3)
    yield "é" * LONG


def profile_of(functions: Sequence[tuple[str, int, str]], first_calls: int = 1) -> bytes:
    """Make a file as cProfile leaves it; function i was called `first_calls + i` times."""
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, dict[object, object]]] = {
        key: (first_calls + place, first_calls + place, 0.5, 1.0, {}) for place, key in enumerate(functions)
    }
    return marshal.dumps(stats)
