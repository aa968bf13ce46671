"""What every Source must do, as one list of rules, and a source in memory that obeys them. Knows no file system."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from monitor.errors import ReadError
from monitor.layout import locate
from monitor.reading import FileData, LocalFile, Version, read_file
from monitor.sources.base import Accept, FileRef, Readable, Source, SourceStatistics

DEADLINE_SECONDS = 20.0
NODE = "framework/pytorch/cprofile/0-a"


def span_name(step: int) -> str:
    """Name the span of one training step."""
    return f"train-{step}-stepstart-{1000 + step}.5_train-{step}-forwardpassend-{1001 + step}.5"


class Collector:
    """Takes references as ingest does, and can be waited for."""

    def __init__(self) -> None:
        self.refs: list[FileRef] = []
        self.largest = 0
        self._more = anyio.Event()

    async def accept(self, refs: Sequence[FileRef]) -> None:
        """Take references."""
        await anyio.lowlevel.checkpoint()
        self.refs.extend(refs)
        self.largest = max(self.largest, len(refs))
        self._more.set()
        self._more = anyio.Event()

    async def wait_for(self, count: int) -> None:
        """Wait until so many references were taken."""
        with anyio.fail_after(DEADLINE_SECONDS):
            while len(self.refs) < count:
                await self._more.wait()

    def steps(self) -> list[int]:
        """Return the steps at which the spans taken so far start, in order."""
        return sorted(ref.span.start_step for ref in self.refs)


class Place(Protocol):
    """Somewhere that a source looks at, and where a test may put files."""

    @property
    def source(self) -> Source:
        """The source that looks here; not running yet."""

    def put(self, step: int, data: bytes, *, node: str = NODE) -> None:
        """Make a span with a data file, or write that file anew."""

    def empty(self, step: int) -> None:
        """Remove a span's data file; its folder stays, in places that have folders."""

    def remove(self, step: int, *, node: str = NODE) -> None:
        """Remove a span and all that is in it."""


@asynccontextmanager
async def running(source: Source) -> AsyncIterator[Collector]:
    """Run a source until the block ends."""
    collector = Collector()
    async with anyio.create_task_group() as group:
        with anyio.fail_after(DEADLINE_SECONDS):
            await group.start(source.run, collector.accept)
        yield collector
        group.cancel_scope.cancel()


async def names_what_is_there_before_it_is_started(place: Place) -> None:
    place.put(1, b"one")
    place.put(2, b"two", node="framework/pytorch/cprofile/1-b")
    async with running(place.source) as collector:
        assert collector.steps() == [1, 2]
        assert sorted(ref.key.node for ref in collector.refs) == ["0-a", "1-b"]
        assert {(ref.key.framework, ref.key.profiler) for ref in collector.refs} == {("pytorch", "cprofile")}
        assert all(locate(ref.path).key == ref.key for ref in collector.refs)


async def names_what_comes_later_and_nothing_twice(place: Place) -> None:
    place.put(1, b"one")
    async with running(place.source) as collector:
        place.put(2, b"two")
        place.put(3, b"three")
        await place.source.poll()
        await place.source.poll()
        assert collector.steps() == [1, 2, 3]


async def names_a_span_again_that_went_and_came_back(place: Place) -> None:
    place.put(1, b"one")
    async with running(place.source) as collector:
        place.remove(1)
        await place.source.poll()
        place.put(1, b"new")
        await place.source.poll()
        assert collector.steps() == [1, 1]


async def hands_over_in_lists_of_bounded_length(place: Place) -> None:
    for step in range(1_500):
        place.put(step, b"x")
    async with running(place.source) as collector:
        assert collector.steps() == list(range(1_500))
        assert collector.largest <= 1_000


async def reads_in_the_order_given_and_says_what_is_missing(place: Place) -> None:
    for step, data in ((1, b"one"), (2, b"two"), (3, b"three")):
        place.put(step, data)
    async with running(place.source) as collector:
        place.empty(2)
        refs = sorted(collector.refs, key=lambda ref: -ref.span.start_step)
        answers = [contents(one) for one in await place.source.read(refs, max_bytes=100)]
        assert answers == [b"three", "missing", b"one"]


async def refuses_a_file_that_is_too_large(place: Place) -> None:
    place.put(1, b"12345")
    place.put(2, b"1234")
    async with running(place.source) as collector:
        refs = sorted(collector.refs, key=lambda ref: ref.span.start_step)
        answers = await place.source.read(refs, max_bytes=4)
        assert [contents(one, max_bytes=4) for one in answers] == ["too_large", b"1234"]


async def tells_versions_that_change_with_the_file(place: Place) -> None:
    for step, data in ((1, b"one"), (2, b"two"), (3, b"three")):
        place.put(step, data)
    async with running(place.source) as collector:
        place.empty(2)
        refs = sorted(collector.refs, key=lambda ref: ref.span.start_step)
        before = await place.source.versions(refs)
        assert before[0]
        assert not before[1]  # () where its folder is left, None where there are no folders
        place.put(1, b"longer than before")
        place.remove(3)
        after = await place.source.versions(refs)
        assert after[0]
        assert after[0] != before[0]
        assert after[2] is None


async def counts_what_it_does(place: Place) -> None:
    place.put(1, b"one")
    async with running(place.source):
        before = place.source.statistics()
        place.put(2, b"two")
        await place.source.poll()
        after = place.source.statistics()
        assert after.available
        assert (before.spans_seen, after.spans_seen) == (1, 2)
        assert after.polls > before.polls


Rule = Callable[[Place], Awaitable[None]]
RULES: tuple[Rule, ...] = (
    names_what_is_there_before_it_is_started,
    names_what_comes_later_and_nothing_twice,
    names_a_span_again_that_went_and_came_back,
    hands_over_in_lists_of_bounded_length,
    reads_in_the_order_given_and_says_what_is_missing,
    refuses_a_file_that_is_too_large,
    tells_versions_that_change_with_the_file,
    counts_what_it_does,
)


def contents(answer: Readable, *, max_bytes: int = 100) -> bytes | str:
    """Return what a source's answer comes to once a decoder has looked: the bytes, or the kind of failure."""
    try:
        if isinstance(answer, LocalFile):
            answer = read_file(answer, max_bytes)
        if isinstance(answer, ReadError):
            return answer.kind
        return answer.data
    except ReadError as error:
        return error.kind


class MemorySource:
    """A source whose files are a dictionary: path -> bytes, or None for a span without its file."""

    job = "memory"
    name = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes | None] = {}
        self._seen: set[str] = set()
        self._accept: Accept | None = None
        self._polls = self._spans_seen = 0

    async def run(self, accept: Accept, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Name what is there, then only what `poll` finds."""
        self._accept = accept
        await self.poll()
        task_status.started()
        await anyio.sleep_forever()

    async def poll(self) -> None:
        """Hand over what is new."""
        if self._accept is None:
            raise RuntimeError("the source does not run")
        self._seen &= self.files.keys()
        new = sorted(self.files.keys() - self._seen)
        for start in range(0, len(new), 1_000):
            found = [locate(path) for path in new[start : start + 1_000]]
            await self._accept([FileRef(key=file.key, span=file.span, path=file.path) for file in found])
        self._seen.update(new)
        self._spans_seen += len(new)
        self._polls += 1

    async def read(self, refs: Sequence[FileRef], *, max_bytes: int) -> list[Readable]:
        """Give bytes, or why there are none."""
        return [self._read_one(ref.path, max_bytes) for ref in refs]

    async def versions(self, refs: Sequence[FileRef]) -> list[Version | None]:
        """Tell versions made of the bytes."""
        return [version_in(self.files, ref.path) for ref in refs]

    def statistics(self) -> SourceStatistics:
        """Say what happened."""
        return SourceStatistics(
            polls=self._polls,
            last_poll_seconds=0.0,
            available=True,
            folders=0,
            spans_seen=self._spans_seen,
            ignored_names=0,
            refused_links=0,
            unreadable_folders=0,
            events=0,
            events_active=False,
            listings=0,
            listing_seconds=0.0,
        )

    def _read_one(self, path: str, max_bytes: int) -> Readable:
        data = self.files.get(path)
        if data is None:
            return ReadError("its folder holds no data file", kind="missing")
        if len(data) > max_bytes:
            return ReadError(f"has {len(data)} bytes, more than the {max_bytes} allowed", kind="too_large")
        return FileData(data, (0, len(data), hash(data)))


def version_in(files: dict[str, bytes | None], path: str) -> Version | None:
    """Return a version as `reading.look_at` would."""
    if path not in files:
        return None
    data = files[path]
    return () if data is None else (0, len(data), hash(data))


class MemoryPlace:
    """A place for the source in memory."""

    def __init__(self) -> None:
        self.source = MemorySource()

    def put(self, step: int, data: bytes, *, node: str = NODE) -> None:
        """Make a span."""
        self.source.files[f"{node}/{span_name(step)}/python_stats"] = data

    def empty(self, step: int) -> None:
        """Remove a span's file."""
        self.source.files[f"{NODE}/{span_name(step)}/python_stats"] = None

    def remove(self, step: int, *, node: str = NODE) -> None:
        """Remove a span."""
        del self.source.files[f"{node}/{span_name(step)}/python_stats"]


def put_span(folder: Path, step: int, data: bytes | None = b"x", *, file: str = "python_stats") -> Path:
    """Make the span of one step below a node's folder on disk; returns where its file is or would be."""
    span = folder / span_name(step)
    span.mkdir(parents=True, exist_ok=True)
    if data is not None:
        (span / file).write_bytes(data)
    return span / file


def freeze(folder: Path, seconds: int) -> None:
    """Set a folder's modification time, as a coarse or foreign clock would."""
    os.utime(folder, ns=(seconds * 10**9, seconds * 10**9))
