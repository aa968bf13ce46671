"""Decoding many files at once, and the batch's form between processes: a typed head and raw column bytes, no pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from monitor.errors import CorruptFile
from monitor.profiles.builder import MEASURES, BatchBuilder, in_range
from monitor.profiles.columns import DecodedBatch, Failure, FunctionName
from monitor.profiles.cprofile import add_cprofile, check_cprofile
from monitor.profiles.pyinstrument import add_pyinstrument

DECODERS: dict[str, Callable[[BatchBuilder, bytes], None]] = {
    "cprofile": add_cprofile,
    "pyinstrument": add_pyinstrument,
}

CHECKS: dict[str, Callable[[bytes], None]] = {"cprofile": check_cprofile}
"""Where a whole batch turns out to hold a value out of range, these find the file; pyinstrument's decoder checks
itself."""

MOST_ROWS = 1_000_000
"""A batch with more rows is closed; the files that are left are postponed to the next one."""


class PostponedFile(CorruptFile):
    """Not a fault: the batch is full."""

    kind = "postponed"

    def __init__(self) -> None:
        super().__init__("is left for the next batch")


COLUMN_TYPES: dict[str, type[np.generic]] = {
    "entry_function": np.int32,
    "entry_caller": np.int32,
    "row_file": np.int32,
    "row_entry": np.int32,
    "calls": np.int64,
    "primitive_calls": np.int64,
    "self_seconds": np.float64,
    "cumulative_seconds": np.float64,
    "path_parent": np.int32,
    "path_function": np.int32,
    "sample_file": np.int32,
    "sample_path": np.int32,
    "sample_self_seconds": np.float64,
}


class Wire(msgspec.Struct, frozen=True, array_like=True):
    """A batch as it crosses the process boundary."""

    files: int
    functions: list[FunctionName]
    columns: dict[str, bytes]
    failures: dict[int, tuple[str, str]]
    empty: list[int]


def decode_batch(
    files: Sequence[tuple[str, Callable[[], bytes]]], begin: Callable[[int], None] = lambda place: None
) -> DecodedBatch:
    """Decode files, given as (profiler, what gives the bytes); one that fails is named and harms no other.

    Args:
        begin: told each file's place before it is touched.
    """
    batch = build(files, begin, checks={})
    return batch if in_range(batch) else build(files, begin, checks=CHECKS)


def build(
    files: Sequence[tuple[str, Callable[[], bytes]]],
    begin: Callable[[int], None],
    checks: Mapping[str, Callable[[bytes], None]],
) -> DecodedBatch:
    """Decode files into one batch, each checked value by value first where there is a check for its profiler."""
    builder = BatchBuilder()
    for place, (profiler, get) in enumerate(files):
        begin(place)
        try:
            if builder.rows > MOST_ROWS:
                raise PostponedFile
            data = get()
            if profiler in checks:
                checks[profiler](data)
            DECODERS[profiler](builder, data)
            builder.end_file()
        except CorruptFile as error:
            builder.fail_file(error)
        except (MemoryError, RecursionError):
            builder.fail_file(CorruptFile("needs more memory than a decoder may use"))
    begin(len(files))  # whatever goes wrong from here on is no single file's fault
    return builder.build()


def encode_batch(batch: DecodedBatch) -> bytes:
    """Put a batch into bytes."""
    return msgspec.msgpack.encode(
        Wire(
            files=batch.files,
            functions=batch.functions,
            columns={name: getattr(batch, name).tobytes() for name in COLUMN_TYPES},
            failures={place: (failure.reason, failure.kind) for place, failure in batch.failures.items()},
            empty=batch.empty,
        )
    )


def read_batch(data: bytes | bytearray | memoryview, files: int) -> DecodedBatch:
    """Read a batch that a worker sent, believing nothing: lengths, ranges and finite numbers are checked.

    Args:
        files: how many files the worker was given.

    Raises:
        ValueError: the bytes are no batch of that many files.
    """
    wire = msgspec.msgpack.decode(data, type=Wire)  # a DecodeError is a ValueError
    if wire.files != files or wire.columns.keys() != COLUMN_TYPES.keys():
        raise ValueError("a batch of other files, or with other columns")
    columns: dict[str, Any] = {
        name: np.frombuffer(wire.columns[name], dtype=kind) for name, kind in COLUMN_TYPES.items()
    }
    failures = {place: Failure(reason=reason, kind=kind) for place, (reason, kind) in wire.failures.items()}
    batch = DecodedBatch(files=files, functions=wire.functions, failures=failures, empty=wire.empty, **columns)
    check_batch(batch)
    return batch


def check_batch(batch: DecodedBatch) -> None:
    """Raise ValueError unless all numbers of a batch point at something and all values are finite."""
    functions, entries, paths = len(batch.functions), len(batch.entry_function), len(batch.path_parent)
    rows = {len(getattr(batch, name)) for name in ("row_entry", *MEASURES)}
    samples = {len(batch.sample_path), len(batch.sample_self_seconds)}
    if len(batch.entry_caller) != entries or len(batch.path_function) != paths:
        raise ValueError("columns of different length")
    if rows != {len(batch.row_file)} or samples != {len(batch.sample_file)}:
        raise ValueError("columns of different length")
    parents = batch.path_parent.astype(np.int64)
    for column, least, end in (
        (batch.entry_function, 0, functions),
        (batch.entry_caller, -1, functions),
        (batch.row_file, 0, batch.files),
        (batch.row_entry, 0, entries),
        (batch.path_parent, -1, paths),
        (batch.path_function, 0, functions),
        (batch.sample_file, 0, batch.files),
        (batch.sample_path, 0, paths),
        (np.asarray([*batch.failures, *batch.empty], dtype=np.int64), 0, batch.files),
    ):
        if len(column) and not (least <= int(column.min()) and int(column.max()) < end):
            raise ValueError("a number that points at nothing")
    if (
        (parents >= np.arange(paths)).any()
        or (np.diff(batch.row_file) < 0).any()
        or (np.diff(batch.sample_file) < 0).any()
    ):
        raise ValueError("rows out of order")
    if (batch.calls < 0).any() or (batch.primitive_calls < 0).any():
        raise ValueError("a negative count")
    for name in ("self_seconds", "cumulative_seconds", "sample_self_seconds"):
        if not np.isfinite(getattr(batch, name)).all():
            raise ValueError("a time that is not finite")


assert {field.name for field in fields(DecodedBatch)} == {"files", "functions", "failures", "empty", *COLUMN_TYPES}
