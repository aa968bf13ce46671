"""Decoding in processes of their own: a crash, a hang or hunger for memory costs one file, not the daemon.

Each child publishes the place of the file it is at, so that when it dies or takes too long the file to blame is known;
the others of its batch are decoded again by its successor.
"""

from __future__ import annotations

import logging
import marshal
import math
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import NamedTuple, TypeAlias

import anyio
import msgspec
import numpy as np

from monitor.decode_worker import Request
from monitor.decoder_process import STOP_SECONDS, Worker, exchange, start_worker
from monitor.errors import ReadError
from monitor.logs import log_once
from monitor.profiles.batch import decode_batch
from monitor.profiles.columns import DecodedBatch, Failure
from monitor.profiles.finish import arrays, finish, in_range, read_parts
from monitor.profiles.raw import RawBatch, parts_of
from monitor.reading import FileData, LocalFile, Version, look_at

logger = logging.getLogger("phasewatch.decoding")

START_AGAIN_SECONDS = 1.0
SPARE_CPU_SECONDS = 2
"""A decoder that is past its deadline is ended by us; only where we cannot, the kernel does so this much later."""


Readable: TypeAlias = LocalFile | FileData | ReadError


class Seen(msgspec.Struct, frozen=True):
    """The version and size in bytes of each file."""

    versions: list[Version]
    sizes: list[int]


class RawAnswer(NamedTuple):
    """What a child sent, checked but not finished."""

    batch: RawBatch
    versions: list[Version]
    sizes: list[int]


class Decoded(NamedTuple):
    """The batch, and the version and size in bytes of each of its files."""

    batch: DecodedBatch
    versions: list[Version]
    sizes: list[int]


class WorkerFailed(Exception):
    """A child died, was too slow or talked nonsense; the message says so, for the file it was at.

    Args:
        certain: that file is to blame without doubt.
    """

    def __init__(self, message: str, *, certain: bool = False) -> None:
        super().__init__(message)
        self.certain = certain


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStatistics:
    """Counts since the start; `busy_seconds` is summed over children."""

    files: int
    failures: int
    crashes: int
    timeouts: int
    restarts: int
    start_failures: int
    busy_seconds: float


@dataclass(slots=True, kw_only=True)
class Counters:
    """What `DecodeStatistics` reports, while it changes."""

    files: int = 0
    failures: int = 0
    crashes: int = 0
    timeouts: int = 0
    restarts: int = 0
    start_failures: int = 0
    busy_seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class DecodePool:
    """A fixed number of decoder processes, started when first needed. Made by `open_decode_pool`.

    Attributes:
        workers: how many. memory_bytes: address space of each.
        deadline_seconds: for one file. max_file_bytes: larger files are refused unread.
    """

    workers: int = 2
    memory_bytes: int = 2**30
    deadline_seconds: float = 10.0
    max_file_bytes: int = 64 * 2**20
    _idle: list[Worker] = field(default_factory=list)
    _limiter: anyio.CapacityLimiter = field(init=False)
    _counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(self.workers)

    async def decode(self, files: Sequence[tuple[str, Readable]]) -> Decoded:
        """Decode files, given as (profiler, file), in one child; waits until one is free.

        A cancel leaves no child behind with half an answer.
        """
        blamed = {place: refusal for place, (_, file) in enumerate(files) if (refusal := self._refusal(file))}
        async with self._limiter:
            started = monotonic()
            decoded = await self._decode_all(files, blamed)
            await note_versions(decoded, files)
            self._counters.busy_seconds += monotonic() - started
        self._counters.files += len(files)
        self._counters.failures += len(decoded.batch.failures)
        return decoded

    def _refusal(self, file: Readable) -> Failure | None:
        """Return why a file is not even sent to a child."""
        if isinstance(file, ReadError):
            return Failure(reason=file.reason, kind=file.kind)
        if isinstance(file, FileData) and len(file.data) > self.max_file_bytes:
            reason = f"has {len(file.data)} bytes, more than the {self.max_file_bytes} allowed"
            return Failure(reason=reason, kind="too_large")
        return None

    async def warm_up(self) -> None:
        """Start all children now, so that the first files need not wait for them."""
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(self._start_idle)

    async def _start_idle(self) -> None:
        async with self._limiter:
            self._idle.append(await self._start())

    def statistics(self) -> DecodeStatistics:
        """Say what happened since the start."""
        counters = self._counters
        return DecodeStatistics(
            files=counters.files,
            failures=counters.failures,
            crashes=counters.crashes,
            timeouts=counters.timeouts,
            restarts=counters.restarts,
            start_failures=counters.start_failures,
            busy_seconds=counters.busy_seconds,
        )

    async def aclose(self) -> None:
        """End all children."""
        while self._idle:
            await self._idle.pop().end()

    async def _decode_all(self, files: Sequence[tuple[str, Readable]], blamed: dict[int, Failure]) -> Decoded:
        """Decode again without the file to blame until a child gets through.

        A child may also die of something else, so a file is blamed for a crash only when it happens twice.
        """
        suspected: set[int] = set()
        while True:
            places = [place for place in range(len(files)) if place not in blamed]
            if not places:
                return place_back(Decoded(empty_batch(), [], []), places, files, blamed)
            worker = await self._take()
            try:
                decoded = await self._ask(worker, [files[place] for place in places])
            except WorkerFailed as failure:
                at = worker.place()
                self._counters.restarts += 1
                await worker.end()
                suspect = places[at] if 0 <= at < len(places) else None
                if suspect is None:
                    blamed |= await self._try_alone(files, places, str(failure))
                elif suspect in suspected or failure.certain:
                    blamed[suspect] = Failure(reason=str(failure), kind="crashed")
                else:
                    suspected.add(suspect)
            except BaseException:
                await worker.end()
                raise
            else:
                self._idle.append(worker)
                return place_back(decoded, places, files, blamed)

    async def _try_alone(
        self, files: Sequence[tuple[str, Readable]], places: list[int], reason: str
    ) -> dict[int, Failure]:
        """Find out which files a child cannot bear, where it was at none of them; all, if each alone is borne."""
        blamed: dict[int, Failure] = {}
        for place in places:
            worker = await self._take()
            try:
                await self._ask(worker, [files[place]])
            except WorkerFailed as failure:
                blamed[place] = Failure(reason=str(failure), kind="crashed")
                self._counters.restarts += 1
                await worker.end()
            except BaseException:
                await worker.end()
                raise
            else:
                self._idle.append(worker)
        return blamed or {place: Failure(reason=reason, kind="crashed") for place in places}

    async def _take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.returncode is None:
                return worker
            await worker.end()
        return await self._start()

    async def _start(self) -> Worker:
        """Start a child; where the machine has no room for one now, wait until it has."""
        while True:
            try:
                return await start_worker(self.memory_bytes)
            except OSError as error:
                self._counters.start_failures += 1
                log_once(
                    logger, f"start:{error}", "cannot start a decoder: %s; trying again", error, level=logging.ERROR
                )
                await anyio.sleep(START_AGAIN_SECONDS)

    async def _ask(self, worker: Worker, files: list[tuple[str, Readable]]) -> Decoded:
        """Have files decoded; where a value is out of range, again with a check of each, which finds its file."""
        answer = await self._converse(worker, files, careful=False)
        if not in_range(answer.batch):
            answer = await self._converse(worker, files, careful=True)
        if not in_range(answer.batch):
            raise self._damaged("a value out of range")
        batch = await anyio.to_thread.run_sync(finish, answer.batch)
        return Decoded(batch, answer.versions, answer.sizes)

    async def _converse(self, worker: Worker, files: list[tuple[str, Readable]], *, careful: bool) -> RawAnswer:
        worker.forget_place()
        cpu_seconds = math.ceil(self.deadline_seconds) + SPARE_CPU_SECONDS
        request = Request(self.max_file_bytes, cpu_seconds, careful, [on_wire(*file) for file in files])
        answer: list[bytearray] = []
        late = False
        async with anyio.create_task_group() as group:
            group.start_soon(self._exchange, worker, marshal.dumps(tuple(request)), answer, group.cancel_scope)
            late = await self._watch(worker)
        if late:
            raise WorkerFailed(f"took longer than {self.deadline_seconds:g} s to decode", certain=True)
        if not answer:
            await self._explain_end(worker)
        try:
            return read_answer(answer[0], len(files))
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, how: str) -> WorkerFailed:
        self._counters.crashes += 1
        return WorkerFailed(f"the decoder gave a damaged answer on it ({how})")

    async def _exchange(self, worker: Worker, request: bytes, answer: list[bytearray], done: anyio.CancelScope) -> None:
        """Send the request and receive the answer, or nothing where the child died; then end the watch.

        The thread ends as soon as the child does, so whoever cancels this kills the child.
        """
        got = await anyio.to_thread.run_sync(exchange, worker, request, abandon_on_cancel=True)
        if got is not None:
            answer.append(got)
        done.cancel()

    async def _watch(self, worker: Worker) -> bool:
        """Kill the child when one file takes longer than its deadline; returns True then. Ends by cancellation else."""
        place, since = worker.place(), monotonic()
        while True:
            await anyio.sleep(self.deadline_seconds / 4)
            now_at = worker.place()
            if now_at != place:
                place, since = now_at, monotonic()
            elif monotonic() - since >= self.deadline_seconds:
                self._counters.timeouts += 1
                worker.process.kill()
                return True

    async def _explain_end(self, worker: Worker) -> None:
        with anyio.move_on_after(STOP_SECONDS):
            await worker.process.wait()
        self._counters.crashes += 1
        code = worker.process.returncode
        if code is not None and code < 0:
            known = -code in set(signal.Signals)
            raise WorkerFailed(
                f"the decoder crashed on it ({signal.Signals(-code).name if known else f'signal {-code}'})"
            )
        raise WorkerFailed(f"the decoder ended on it with exit code {code}")


@asynccontextmanager
async def open_decode_pool(
    *, workers: int, memory_bytes: int, deadline_seconds: float, max_file_bytes: int
) -> AsyncIterator[DecodePool]:
    """Open a pool; its children end with the block."""
    pool = DecodePool(
        workers=workers, memory_bytes=memory_bytes, deadline_seconds=deadline_seconds, max_file_bytes=max_file_bytes
    )
    try:
        yield pool
    finally:
        await pool.aclose()


def on_wire(profiler: str, file: Readable) -> tuple[str, bytes | None, bytes, bytes]:
    """Put one file into a request."""
    if isinstance(file, FileData):
        return profiler, file.data, b"", b""
    if isinstance(file, LocalFile):
        return profiler, None, os.fsencode(file.path), os.fsencode(file.root)  # names need not be text
    raise TypeError("a file that was not read is not sent")


def read_answer(data: bytearray, files: int) -> RawAnswer:
    """Read what a child sent, believing nothing; raises ValueError for nonsense."""
    head, *batch = parts_of(data) or [memoryview(b"")]
    seen = msgspec.json.decode(head, type=Seen)
    if not len(seen.versions) == len(seen.sizes) == files or min(seen.sizes, default=0) < 0:
        raise ValueError("versions or sizes of other files")
    return RawAnswer(read_parts(batch, files), seen.versions, seen.sizes)


async def note_versions(decoded: Decoded, files: Sequence[tuple[str, Readable]]) -> None:
    """Note which version of a file a child did not bear, so that it is tried again only when it has changed."""
    for place, failure in decoded.batch.failures.items():
        file = files[place][1]
        if failure.kind == "crashed" and isinstance(file, LocalFile):
            seen: Version | None = await anyio.to_thread.run_sync(look_at, file.path)
            decoded.versions[place] = seen or ()


def empty_batch() -> DecodedBatch:
    """Return a batch of no files."""
    return finish(arrays(decode_batch([])))


def place_back(
    decoded: Decoded, places: list[int], files: Sequence[tuple[str, Readable]], blamed: dict[int, Failure]
) -> Decoded:
    """Turn the places of an answer about some files into those of all files."""
    batch = decoded.batch
    versions = [file.version if isinstance(file, (FileData, ReadError)) else () for _, file in files]
    sizes = [0] * len(files)
    for place, version, size in zip(places, decoded.versions, decoded.sizes, strict=True):
        versions[place], sizes[place] = version or versions[place], size
    if len(places) < len(files):
        where = np.asarray(places, dtype=np.int32)
        batch = replace(
            batch,
            files=len(files),
            row_file=where[batch.row_file] if len(places) else batch.row_file,
            sample_file=where[batch.sample_file] if len(places) else batch.sample_file,
            failures={**{places[place]: failure for place, failure in batch.failures.items()}, **blamed},
            empty=[places[place] for place in batch.empty],
        )
    return Decoded(batch, versions, sizes)
