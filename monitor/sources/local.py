"""A local folder as a source: polling is right by itself, file-system events only make it faster.

Only folders above the spans are watched; a span folder is named once, when it appears, and what happens inside it is
looked at by ingest. The walker is used in one worker thread at a time, under this source's lock.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from monitor.layout import SpanKey
from monitor.logs import log_once
from monitor.sources.base import Accept, FileData, FileRef, ReadFailure, SourceStatistics, Version
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
        known: tells whether a span is stored already.
        poll_interval_seconds: between two looks at the gates.
        events: use file-system events where they work.
        full_scan_seconds: least time between two scans that ignore the gates.
    """

    def __init__(
        self,
        root: Path,
        *,
        job: str,
        known: Callable[[SpanKey], bool],
        poll_interval_seconds: float = 1.0,
        events: bool = True,
        full_scan_seconds: float = 60.0,
    ) -> None:
        self._root = root
        self._job = job
        self._walker = Walker(root, known)
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

    async def read(self, refs: Sequence[FileRef], *, max_bytes: int) -> list[FileData | ReadFailure]:
        """Read data files, in the order given; all of them in one turn of a worker thread."""
        root = os.path.realpath(self._root)
        return await anyio.to_thread.run_sync(lambda: [read_file(ref.path, root, max_bytes) for ref in refs])

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
                watch = awatch(
                    *folders,
                    recursive=False,
                    watch_filter=None,
                    step=EVENT_STEP_MILLISECONDS,
                    debounce=EVENT_DEBOUNCE_MILLISECONDS,
                    ignore_permission_denied=True,
                )
                self._events_active = True
                async for changes in watch:
                    await self._take_events(changes)
            except OSError as error:
                log_once(
                    logger,
                    f"events:{self._root}",
                    "no file-system events for %s (%s); polling every %g s instead",
                    self._root,
                    error,
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


def batched_lists(refs: list[FileRef], most: int) -> list[list[FileRef]]:
    """Split a list into pieces of at most `most`."""
    return [refs[start : start + most] for start in range(0, len(refs), most)]


def look_at(path: str) -> Version | None:
    """Return a file's version, () where only its folder is there, None where not even that."""
    try:
        found = os.lstat(path)
    except OSError:
        return () if Path(path).parent.is_dir() else None
    return version_of(found)


def version_of(found: os.stat_result) -> Version:
    """Return what changes when a file does."""
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_file(path: str, root: str, max_bytes: int) -> FileData | ReadFailure:
    """Read one plain file that lies below a root, and no other."""
    try:
        descriptor = open_inside(path, root)
    except OSError as error:
        return failure_of(error)
    try:
        found = os.fstat(descriptor)
        version = version_of(found)
        if not stat.S_ISREG(found.st_mode):
            return ReadFailure(reason="is not a plain file", kind="refused", version=version)
        if found.st_size > max_bytes:
            reason = f"has {found.st_size} bytes, more than the {max_bytes} allowed"
            return ReadFailure(reason=reason, kind="too_large", version=version)
        data = read_all(descriptor, found.st_size + 1)
    except OSError as error:
        return failure_of(error)
    finally:
        os.close(descriptor)
    if len(data) > found.st_size:  # it grew meanwhile; what is there is looked at next time
        return ReadFailure(reason="grew while it was read", kind="unreadable", version=())
    return FileData(data=data, version=version)


def open_inside(path: str, root: str) -> int:
    """Open a file without following links, or where there are links only if they stay below the root."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    folder_path, _, name = path.rpartition("/")
    try:
        folder = os.open(folder_path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
    real = os.path.realpath(path)
    if not real.startswith(f"{root}/"):
        raise OSError(errno.ELOOP, f"is a link that leads out of {root}")
    return os.open(real, flags)


def read_all(descriptor: int, most: int) -> bytes:
    """Read up to so many bytes."""
    pieces: list[bytes] = []
    while most > 0 and (piece := os.read(descriptor, most)):
        pieces.append(piece)
        most -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def failure_of(error: OSError) -> ReadFailure:
    """Tell why a file could not be opened or read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ReadFailure(reason="its folder holds no data file", kind="missing", version=())
    kind = "refused" if error.errno in (errno.ELOOP, errno.ENXIO) else "unreadable"
    return ReadFailure(reason=f"cannot be read: {error.strerror}", kind=kind, version=())  # type: ignore[arg-type]
