"""What a decoder process collects, and its form between processes: typed heads and raw column bytes, no pickle.

Standard library only: a process that imports numpy and msgspec takes four times as long to be there, and a notebook
waits for it. What is left to do is done by the process that asked, see `finish`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, NamedTuple, TypeAlias

FunctionName: TypeAlias = tuple[str, int, str]
"""File, first line, name: the key of a pstats dictionary, without memory addresses."""

NO_CALLER = -1
"""In a column of callers: the row is the function's own, not one of its callers' rows."""

NO_PARENT = -1
"""In a column of parent paths: the path is a root."""

COLUMN_CODES: Mapping[str, str] = {
    "calls": "q",
    "primitive_calls": "q",
    "self_seconds": "d",
    "cumulative_seconds": "d",
    "row_ends": "q",
    "sample_self_seconds": "d",
    "sample_ends": "q",
    "function": "i",
    "caller": "i",
    "path_parent": "i",
    "path_function": "i",
    "sample_path": "i",
}
"""The columns with their type codes, the wider first: so each lies where a processor likes to have its numbers."""

LENGTH = struct.Struct("<Q")


class Failure(NamedTuple):
    """Why one file of a batch gave no profile.

    Attributes:
        reason: one sentence without the file's name.
        kind: one word for counting; "incomplete" is a file that ends too early and is probably still being written.
    """

    reason: str
    kind: str


class RawBatch(NamedTuple):
    """Decoded files as they were read: a row for each function and for each of its callers, file after file.

    Attributes:
        functions: distinct names; columns hold positions in it.
        columns: by the names of COLUMN_CODES. `row_ends` and `sample_ends` hold for each file where its rows end.
        failures: file position -> why; such files have no rows.
        empty: positions of files that are known to hold no data (an unrecorded pyinstrument session).
        shared_names: two keys of the files became one name, so rows of one file may coincide.
    """

    functions: list[FunctionName]
    columns: Mapping[str, Any]
    failures: Mapping[int, Failure]
    empty: list[int]
    shared_names: bool


def batch_parts(batch: RawBatch) -> list[bytes]:
    """Put a batch into parts of bytes: its head as JSON, and its columns."""
    head = {
        "functions": batch.functions,
        "failures": batch.failures,
        "empty": batch.empty,
        "shared_names": batch.shared_names,
    }
    return [json_part(head), *(batch.columns[name].tobytes() for name in COLUMN_CODES)]


def json_part(value: object) -> bytes:
    """Make a part of plain values."""
    text = dumps(value).encode()
    return text.ljust(-(-len(text) // LENGTH.size) * LENGTH.size)


def lengths_of(parts: Sequence[bytes]) -> bytes:
    """Return what goes before the parts of a message, so that they can be told apart."""
    return b"".join(LENGTH.pack(number) for number in (len(parts), *map(len, parts)))


def parts_of(message: bytes | bytearray) -> list[memoryview]:
    """Take a message apart into its parts; raises ValueError where it is none."""
    view = memoryview(message)
    try:
        (count,) = LENGTH.unpack_from(view)
        at = (1 + count) * LENGTH.size
        if at > len(view):
            raise ValueError("a message that ends in its head")
        parts = []
        for place in range(count):
            (length,) = LENGTH.unpack_from(view, (1 + place) * LENGTH.size)
            parts.append(view[at : at + length])
            at += length
    except struct.error as error:
        raise ValueError(f"no message: {error}") from error
    if at != len(view):
        raise ValueError("a message of another length")
    return parts
