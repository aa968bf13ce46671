"""A local folder as a source: polling is right by itself, file-system events only make it faster.

Only folders above the spans are watched; a span folder is named once, when it appears, and what happens inside it is
looked at by ingest. The walker is used in one worker thread at a time, under this source's lock, and only by the
source's own tasks: whoever asks for a poll may be cancelled, and must neither lose what was found nor free the lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from monitor.logs import log_once
from monitor.reading import LocalFile, Version, look_at
from monitor.sources.base import Accept, FileRef, Readable, SourceStatistics
from monitor.sources.polls import Polls
from monitor.sources.walk import Walker

if TYPE_CHECKING:
    from watchfiles import Change

logger = logging.getLogger("phasewatch.source")

MOST_AT_ONCE = 1_000
EVENT_STEP_MILLISECONDS = 40
EVENT_DEBOUNCE_MILLISECONDS = 120
WATCH_AGAIN_SECONDS = 60.0
FULL_SCAN_SHARE = 0.005
"""A full scan, which ignores gates, may take this share of the time."""


class LocalSource:
    """Follows one folder.

    Args:
        root: a base folder of the layout, or a folder above or below one; it may not exist yet.
        poll_interval_seconds: between two looks at the gates.
        events: use file-system events where they work.
        full_scan_seconds: least time between two scans that ignore the gates.
    """

    def __init__(
        self,
        root: Path,
        *,
        job: str,
        poll_interval_seconds: float = 1.0,
        events: bool = True,
        full_scan_seconds: float = 60.0,
    ) -> None:
        self._root = root
        self._job = job
        self._walker = Walker(root)
        self._poll_interval = poll_interval_seconds
        self._use_events = events
        self._full_scan = full_scan_seconds
        self._lock = anyio.Lock()
        self._accept: Accept | None = None
        self._found: deque[FileRef] = deque()
        self._asked: list[anyio.Event] = []
        self._wake = anyio.Event()
        self._ended = False
        self._folders: frozenset[str] = frozenset()
        self._folders_changed = anyio.Event()
        self._events_active = False
        self._polls = Polls()
        self._events = self._event_failures = 0
        self._next_full_scan = float("-inf")

    @property
    def job(self) -> str:
        """The job whose profiles these are."""
        return self._job

    @property
    def name(self) -> str:
        """The folder as it was given, in a form that can be told to anybody."""
        return str(self._root).encode("utf-8", "backslashreplace").decode("utf-8")

    @property
    def root_path(self) -> str:
        """The folder without links, as of the last poll."""
        return self._walker.root_path

    async def run(self, accept: Accept, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Find spans until cancelled; `started()` once the first complete poll is handed over."""
        self._accept = accept
        async with anyio.create_task_group() as group:
            if self._use_events:
                group.start_soon(self._follow_events)
            due = anyio.current_time()
            await self._scan()
            task_status.started()
            try:
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
        """List every folder that has changed, now; returns when all that was found is handed over."""
        if self._ended:
            return
        done = anyio.Event()
        self._asked.append(done)
        self._wake.set()
        await done.wait()

    @property
    def ended(self) -> bool:
        """It runs no longer, so polls find nothing."""
        return self._ended

    def unchanged(self) -> bool:
        """Tell, at the price of one look at each folder above the spans, that a poll would find nothing.

        Only for whoever knows that no poll is under way: the walker is not for two threads at a time.
        """
        return monotonic() < self._next_full_scan and self._walker.holds()

    def unreadable(self) -> Mapping[str, str]:
        """Return the folders that cannot be read now, and why; spans may be missing there."""
        return dict(self._walker.unreadable)

    async def read(self, refs: Sequence[FileRef], *, max_bytes: int) -> list[Readable]:
        """Name data files, in the order given; decoders open them."""
        return [LocalFile(ref.path, self._walker.root_path) for ref in refs]

    async def versions(self, refs: Sequence[FileRef]) -> list[Version | None]:
        """Look at data files without reading them."""
        return await anyio.to_thread.run_sync(lambda: [look_at(ref.path) for ref in refs])

    def statistics(self) -> SourceStatistics:
        """Say what happened since the start."""
        walker = self._walker
        return SourceStatistics(
            **self._polls.facts,
            available=walker.available,
            folders=len(self._folders),
            spans_seen=walker.spans_seen,
            ignored_names=walker.ignored_names,
            refused_links=walker.refused_links,
            unreadable_folders=walker.unreadable_folders,
            events=self._events,
            events_active=self._events_active,
            event_failures=self._event_failures,
            listings=walker.listings,
            listing_seconds=walker.listing_seconds,
        )

    async def _answer_polls(self) -> None:
        """Scan, wholly where somebody asked for it before the scan began."""
        self._wake = anyio.Event()
        asked, self._asked = self._asked, []
        try:
            await self._scan(everything=bool(asked))
        finally:
            release(asked)

    async def _scan(self, *, everything: bool = False) -> None:
        async with self._lock:
            started = perf_counter()
            if monotonic() >= self._next_full_scan:
                await anyio.to_thread.run_sync(self._walker.distrust)
                self._next_full_scan = float("inf")
            scan = self._walker.scan(monotonic(), wall=time(), watched=self._events_active, everything=everything)
            while await anyio.to_thread.run_sync(self._collect, scan):
                await self._hand_over()
            await self._hand_over()
            self._note_folders()
            seconds = perf_counter() - started
            self._polls.note(seconds, self._walker.complaint())
            if self._next_full_scan == float("inf"):
                pause = max(self._full_scan, seconds / FULL_SCAN_SHARE)
                self._next_full_scan = monotonic() + pause

    def _collect(self, scan: Iterator[list[FileRef]]) -> bool:
        """Keep what the next changed folder holds; False where there is none. Runs in a thread."""
        refs = next(scan, None)
        self._found.extend(refs or ())
        return refs is not None

    async def _hand_over(self) -> None:
        """Pass on what was found. What a cancel leaves is passed on next time: the walker names nothing twice."""
        if self._accept is None:
            raise RuntimeError("the source does not run")
        while some := list(islice(self._found, MOST_AT_ONCE)):
            await self._accept(some)
            for _ in some:
                self._found.popleft()

    def _note_folders(self) -> None:
        folders = frozenset(folder.path for folder in self._walker.folders())
        if folders != self._folders:
            self._folders = folders
            self._folders_changed.set()
            self._folders_changed = anyio.Event()

    # -- events ----------------------------------------------------------------------------------------------------

    async def _follow_events(self) -> None:
        """Watch the folders that are known; start over when there are others."""
        while True:
            changed = self._folders_changed
            if not self._folders:
                await changed.wait()
                continue
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, self._folders)
                await changed.wait()
                group.cancel_scope.cancel()
            self._events_active = False

    async def _watch(self, folders: frozenset[str]) -> None:
        """Take events until cancelled. Where there can be none, polling goes on alone and this is tried again later."""
        from watchfiles import awatch

        while True:
            try:
                stop = anyio.Event()
                watch = awatch(
                    *folders,
                    recursive=False,
                    watch_filter=None,
                    stop_event=stop,
                    step=EVENT_STEP_MILLISECONDS,
                    debounce=EVENT_DEBOUNCE_MILLISECONDS,
                    ignore_permission_denied=True,
                )
                self._events_active = True
                async with anyio.create_task_group() as group:
                    group.start_soon(set_when_cancelled, stop)
                    async for changes in watch:
                        await self._take_events(changes)
            except* OSError as group_of_errors:
                self._event_failures += 1
                log_once(
                    logger,
                    f"events:{self._root}",
                    "no file-system events for %s (%s); polling every %g s instead",
                    self._root,
                    "; ".join(str(error) for error in group_of_errors.exceptions),
                    self._poll_interval,
                    level=logging.WARNING,
                )
            self._events_active = False
            await anyio.sleep(WATCH_AGAIN_SECONDS)

    async def _take_events(self, changes: set[tuple[Change, str]]) -> None:
        self._events += len(changes)
        paths = sorted(path for change, path in changes if change.name == "added")
        async with self._lock:
            taken = await anyio.to_thread.run_sync(self._take_paths, paths)
            await self._hand_over()
        if len(paths) > taken:
            await self._scan()

    def _take_paths(self, paths: list[str]) -> int:
        """Keep the new spans that events named; returns how many. Runs in a thread."""
        refs = [ref for path in paths for ref in self._walker.take_event(path)]
        self._found.extend(refs)
        return len(refs)


async def set_when_cancelled(event: anyio.Event) -> None:
    """Set an event at cancellation: the thread that watches looks at it, and would otherwise hold up a stop for
    seconds."""
    try:
        await anyio.sleep_forever()
    finally:
        event.set()


def release(waiting: list[anyio.Event]) -> None:
    """Let all go that wait."""
    for done in waiting:
        done.set()
