"""A local folder as a source: polling is right by itself, file-system events only make it faster.

Only folders above the spans are watched; a span folder is named once, when it appears, and what happens inside it is
looked at by ingest. The walker is used in one worker thread at a time, under this source's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from monitor.logs import log_once
from monitor.reading import LocalFile, Version, look_at
from monitor.sources.base import Accept, FileRef, Readable, SourceStatistics
from monitor.sources.walk import Walker

if TYPE_CHECKING:
    from watchfiles import Change

logger = logging.getLogger("phasewatch.source")

MOST_AT_ONCE = 1_000
EVENT_STEP_MILLISECONDS = 20
EVENT_DEBOUNCE_MILLISECONDS = 60
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
        self._folders: frozenset[str] = frozenset()
        self._folders_changed = anyio.Event()
        self._events_active = False
        self._polls = self._events = 0
        self._last_poll_seconds = 0.0
        self._next_full_scan = float("-inf")

    @property
    def job(self) -> str:
        """The job whose profiles these are."""
        return self._job

    @property
    def name(self) -> str:
        """The folder as it was given."""
        return str(self._root)

    async def run(self, accept: Accept, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Find spans until cancelled; `started()` once the first complete poll is handed over."""
        self._accept = accept
        async with anyio.create_task_group() as group:
            if self._use_events:
                group.start_soon(self._follow_events)
            due = anyio.current_time()
            await self._scan()
            task_status.started()
            while True:
                due = max(due + self._poll_interval, anyio.current_time() - self._poll_interval)
                await anyio.sleep_until(due)
                await self._scan()

    async def poll(self) -> None:
        """List every folder that has changed, now; returns when all that was found is handed over."""
        await self._scan(everything=True)

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
            polls=self._polls,
            last_poll_seconds=self._last_poll_seconds,
            available=walker.available,
            folders=len(self._folders),
            spans_seen=walker.spans_seen,
            ignored_names=walker.ignored_names,
            refused_links=walker.refused_links,
            unreadable_folders=walker.unreadable_folders,
            events=self._events,
            events_active=self._events_active,
            listings=walker.listings,
            listing_seconds=walker.listing_seconds,
        )

    async def _scan(self, *, everything: bool = False) -> None:
        async with self._lock:
            started = perf_counter()
            if monotonic() >= self._next_full_scan:
                await anyio.to_thread.run_sync(self._walker.distrust)
                self._next_full_scan = float("inf")
            scan = self._walker.scan(monotonic(), watched=self._events_active, everything=everything)
            while refs := await anyio.to_thread.run_sync(partial(next, scan, None)):
                await self._hand_over(refs)
            self._note_folders()
            self._polls += 1
            self._last_poll_seconds = perf_counter() - started
            if self._next_full_scan == float("inf"):
                pause = max(self._full_scan, self._last_poll_seconds / FULL_SCAN_SHARE)
                self._next_full_scan = monotonic() + pause

    async def _hand_over(self, refs: list[FileRef]) -> None:
        if self._accept is None:
            raise RuntimeError("the source does not run")
        for some in batched_lists(refs, MOST_AT_ONCE):
            await self._accept(some)

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
            taken = await anyio.to_thread.run_sync(lambda: [self._walker.take_event(path) for path in paths])
            await self._hand_over([ref for refs in taken for ref in refs])
        if len(paths) > sum(map(len, taken)):
            await self._scan()


async def set_when_cancelled(event: anyio.Event) -> None:
    """Set an event at cancellation: the thread that watches looks at it, and would otherwise hold up a stop for
    seconds."""
    try:
        await anyio.sleep_forever()
    finally:
        event.set()


def batched_lists(refs: list[FileRef], most: int) -> list[list[FileRef]]:
    """Split a list into pieces of at most `most`."""
    return [refs[start : start + most] for start in range(0, len(refs), most)]
