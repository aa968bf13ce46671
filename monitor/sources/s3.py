"""A prefix of a bucket as a source. A span is there when its data object is: objects appear whole, so nothing waits.

Only data objects are named and read; pictures (HTML) are never downloaded. Listing and reading share one pacer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from time import perf_counter

import anyio
from anyio.abc import TaskStatus

from monitor.errors import ReadError, RequestFailed
from monitor.logs import log_once
from monitor.reading import FileData, Version
from monitor.s3_url import S3Url, parse_s3_url
from monitor.sources.base import Accept, Cursors, FileRef, Readable, SourceStatistics
from monitor.sources.pacing import Pacer
from monitor.sources.polls import Polls
from monitor.sources.s3_client import Bucket, Queue, S3Client, open_s3_client
from monitor.sources.s3_finder import Finder
from monitor.sources.s3_queue import QueueReader

__all__ = ["S3Source", "open_s3_client", "parse_s3_url"]

logger = logging.getLogger("phasewatch.source")

KEEP_SECONDS = 5.0
READ_ATTEMPTS = 5
MOST_BYTES_AT_ONCE = 64 * 2**20
"""A call of `read` gives about so many bytes, and always one file; the others are postponed."""


class S3Source:
    """Follows one prefix.

    Args:
        client: open as long as the source is used.
        url: where framework/ is found, or a place above or below it.
        poll_interval_seconds: between two looks for what is new; full_scan_seconds: between two passes over all keys.
        most_requests: at the same time, when the store bears it.
        cursors: where to keep how far it came, so that a restart need not list the history again.
        queue: tells of new objects; needs cursors, which tell what is stored.

    Attributes:
        failure: why the last look failed; "" when it did not.
    """

    def __init__(
        self,
        client: S3Client,
        url: S3Url,
        *,
        job: str,
        poll_interval_seconds: float = 10.0,
        full_scan_seconds: float = 3_600.0,
        requester_pays: bool = False,
        most_requests: int = 32,
        cursors: Cursors | None = None,
        queue: Queue | None = None,
    ) -> None:
        self._bucket = Bucket(client, url.bucket, requester_pays=requester_pays)
        self._url = url
        self._job = job
        self._poll_interval = poll_interval_seconds
        self._pacer = Pacer(most=most_requests)
        self._readers = most_requests
        self._finder = Finder(self._bucket, self._pacer, url, every_seconds=full_scan_seconds)
        self._cursors = cursors
        self._queue: QueueReader | None = None
        if queue is not None and cursors is not None:
            # A pacer of its own: a receiver waits ten seconds for messages, and would take room from readers.
            self._queue = QueueReader(queue, Pacer(most=16), cursors, self._finder.take_keys)
        self._asked: list[anyio.Event] = []
        self._wake = anyio.Event()
        self._ended = False
        self._available = True
        self.failure = ""
        self._polls = Polls()
        self._bytes = self._cursors_kept = 0

    @property
    def job(self) -> str:
        """The job whose profiles these are."""
        return self._job

    @property
    def name(self) -> str:
        """The place as s3://bucket/prefix."""
        return str(self._url)

    @property
    def ended(self) -> bool:
        """It runs no longer, so polls find nothing."""
        return self._ended

    async def run(self, accept: Accept, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Find spans until cancelled; `started()` once the first complete poll is handed over."""
        self._finder.use(accept)
        due = anyio.current_time()
        try:
            async with anyio.create_task_group() as group:
                if self._cursors is not None:
                    await self._load(self._cursors)
                    group.start_soon(self._keep_cursors, self._cursors)
                if self._queue is not None:
                    group.start_soon(self._queue.run)
                await self._look(everything=True)
                task_status.started()
                while True:
                    if anyio.current_time() >= due:
                        due = max(due + self._poll_interval, anyio.current_time() - self._poll_interval)
                    with anyio.CancelScope(deadline=due):
                        await self._wake.wait()
                    await self._answer_polls()
        finally:
            self._ended = True
            release(self._asked)

    async def poll(self) -> None:
        """Look at everything that changed, now; returns when all that was found is handed over."""
        if self._ended:
            return
        done = anyio.Event()
        self._asked.append(done)
        self._wake.set()
        await done.wait()

    async def read(self, refs: Sequence[FileRef], *, max_bytes: int) -> list[Readable]:
        """Download data objects, in the order given. While S3 is not to be reached this waits."""
        answers: list[Readable] = [ReadError("not read yet", kind="postponed")] * len(refs)
        places = iter(range(len(refs)))
        budget = MOST_BYTES_AT_ONCE

        async def read_some() -> None:
            nonlocal budget
            for place in places:
                if budget <= 0:
                    return
                answers[place] = answer = await self._read_one(refs[place], max_bytes)
                if isinstance(answer, FileData):
                    budget -= len(answer.data)

        async with anyio.create_task_group() as group:
            for _ in range(min(self._readers, len(refs))):
                group.start_soon(read_some)
        return answers

    async def versions(self, refs: Sequence[FileRef]) -> list[Version | None]:
        """Look at data objects without reading them; one that may not be looked at has the version ()."""
        versions: list[Version | None] = [()] * len(refs)
        places = iter(range(len(refs)))

        async def look_at_some() -> None:
            for place in places:
                versions[place] = await self._look_at_one(refs[place])

        async with anyio.create_task_group() as group:
            for _ in range(min(self._readers, len(refs))):
                group.start_soon(look_at_some)
        return versions

    def statistics(self) -> SourceStatistics:
        """Say what happened since the start."""
        requests = self._pacer.counts() | (self._queue.counts() if self._queue else {})
        return SourceStatistics(
            **self._polls.facts,
            available=self._available,
            folders=self._finder.folders,
            spans_seen=self._finder.spans_seen,
            ignored_names=self._finder.sorter.ignored_names,
            refused_links=0,
            unreadable_folders=sum(count for result, count in requests.get("list", {}).items() if result != "ok"),
            events=self._queue.events if self._queue else 0,
            events_active=self._queue is not None and self._queue.active,
            listings=self._finder.listings,
            listing_seconds=self._finder.listing_seconds,
            requests=requests,
            messages_set_aside=self._queue.set_aside if self._queue else 0,
            requests_at_once=self._pacer.room,
            trouble=self._pacer.pausing,
            bytes_read=self._bytes,
            keys_seen=self._finder.keys_seen,
            lag_seconds=self._finder.lag_seconds,
            cursors_kept=self._cursors_kept,
            full_pass_pages=self._finder.passes,
        )

    # -- finding ---------------------------------------------------------------------------------------------------

    async def _answer_polls(self) -> None:
        """Look, at all windows where somebody asked for it before the look began."""
        self._wake = anyio.Event()
        asked, self._asked = self._asked, []
        try:
            await self._look(everything=bool(asked))
        finally:
            release(asked)

    async def _look(self, *, everything: bool) -> None:
        """Look once. A store that cannot be reached is said so, and is looked at again next time."""
        started = perf_counter()
        try:
            await self._finder.look(everything=everything)
            self._available = True
            self.failure = ""
        except* RequestFailed as group:
            self._available = False
            error = first_of(group)
            self.failure = str(error)
            message = "%s; looking again every %g s"
            key = f"s3:{self._url}:{error}"
            log_once(logger, key, message, error, self._poll_interval, level=logging.WARNING)
        self._polls.note(perf_counter() - started, self.failure)

    async def _load(self, cursors: Cursors) -> None:
        text = await cursors.load()
        if text is not None:
            self._finder.load(text)

    async def _keep_cursors(self, cursors: Cursors) -> None:
        """Keep the cursors now and then, each time only once all that they leave behind is stored."""
        kept = self._finder.changed
        while True:
            await anyio.sleep(KEEP_SECONDS)
            if self._finder.changed != kept:
                kept = self._finder.changed
                await cursors.keep(self._finder.dump())
                self._cursors_kept += 1

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _read_one(self, ref: FileRef, max_bytes: int) -> Readable:
        key = self._finder.sorter.key_of(ref)
        try:
            data = await self._pacer.ask(
                "get", lambda: self._bucket.get(key, max_bytes), attempts=READ_ATTEMPTS, patient=True
            )
        except RequestFailed as error:
            return ReadError(str(error), kind="missing" if error.kind == "missing" else "unreadable")
        if isinstance(data, FileData):
            self._bytes += len(data.data)
        return data

    async def _look_at_one(self, ref: FileRef) -> Version | None:
        key = self._finder.sorter.key_of(ref)
        try:
            ask = partial(self._bucket.look, key)
            version = await self._pacer.ask("head", ask, attempts=READ_ATTEMPTS, patient=True)
        except RequestFailed:
            return ()
        if version is None:
            self._finder.forget(ref)  # ingest may forget it too, so it must be named again if it comes back
        return version


def release(waiting: list[anyio.Event]) -> None:
    """Let all go that wait."""
    for done in waiting:
        done.set()


def first_of(group: BaseExceptionGroup[RequestFailed]) -> RequestFailed:
    """Return one error of a group, to stand for all."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RequestFailed)
    return error
