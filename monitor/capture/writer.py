"""Writes span folders, whole or not at all, off the training thread. Owns the queue and the files; never raises into
the training script, never makes it wait except in flush and close, and those with a deadline."""

from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monitor.capture.profilers import Render
from monitor.capture.settings import QUEUE_SPANS
from monitor.spans import Moment, format_span_name, parse_span_name

logger = logging.getLogger("phasewatch.capture")

FLUSH_SECONDS = 4.0
"""What close() and what the exit may each cost when the disk is stuck: `docker stop` kills 10 s after SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSpan:
    """A span that has been recorded and not written.

    Attributes:
        render: makes the files; called once, on the thread that writes.
    """

    start: Moment
    end: Moment
    render: Render


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """What the writer did so far.

    Attributes:
        dropped: spans refused because the queue was full.
        failed: spans that could not be rendered or written.
        waiting: spans taken and not yet written, the one in hand included.
        last_failure: the newest error's text.
        folder_bytes: what the node folder holds, with what earlier runs left in it; 0 until the first span is written.
    """

    written: int
    written_bytes: int
    dropped: int
    failed: int
    waiting: int
    last_failure: str | None
    folder_bytes: int


class SpanWriter:
    """Writes the spans of one node.

    A span is written into a hidden folder inside the node folder and moved out of it whole. The hidden one holds span
    folders, not data files: the original's reader, which takes any folder with a data file for a span, passes it over,
    and the node folder's time stamp changes only when a span is there to be read.

    Args:
        base: made when the first span is written; not made again if it goes away, for it may be a mount.
        node_folder: the folder below it that gets the span folders.
        threaded: False writes in the calling thread.
        queue_spans: how many spans may wait; beyond it they are dropped and counted.
    """

    def __init__(self, base: Path, node_folder: Path, *, threaded: bool = True, queue_spans: int = QUEUE_SPANS) -> None:
        self._base = base
        self.node_folder = node_folder
        # The process id keeps two jobs apart that were given the same node by mistake.
        self._staging = node_folder / f".tmp-{os.getpid()}"
        self._base_made = False
        self._threaded = threaded
        self._limit = queue_spans
        # SimpleQueue, because put() takes part of a microsecond; one producer, so the size check is exact enough.
        self._queue: queue.SimpleQueue[PendingSpan | Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        # Each counter is changed by one thread only.
        self._taken = self._written = self._written_bytes = self._dropped = self._failed = 0
        self._last_failure: str | None = None
        self._measured = False
        self.folder_bytes = 0
        """What the node folder holds; read on the training thread at each transition."""

    def submit(self, span: PendingSpan) -> None:
        """Take a span to be written; returns at once where there is a thread, and drops the span when it must."""
        if self._closed:
            return
        if not self._threaded or not self._running():
            self._taken += 1
            self._write(span)
        elif self._queue.qsize() >= self._limit:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning(
                    "%s spans wait to be written to %s: this span is dropped, later ones will be counted only. "
                    "Profile fewer steps (every=) or write to a faster disk",
                    self._limit,
                    self.node_folder,
                )
        else:
            self._taken += 1
            self._queue.put(span)

    def run_soon(self, work: Callable[[], object]) -> None:
        """Do some small work where spans are written; it must not raise."""
        if self._closed or not self._threaded or not self._running():
            work()
        else:
            self._queue.put(work)

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all that was submitted is written; False when the deadline passed first."""
        if self._thread is None:
            return True
        if self._closed:
            self._thread.join(timeout_seconds)
            return not self._thread.is_alive()
        done = threading.Event()
        self._queue.put(done.set)
        return done.wait(timeout_seconds)

    def close(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        """Flush, stop the thread and take nothing more; False when the deadline passed first."""
        if self._closed:
            return True
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                logger.warning(
                    "%s spans were still not written to %s after %s s and are lost",
                    self.statistics().waiting,
                    self.node_folder,
                    timeout_seconds,
                )
                return False
        try:
            self._staging.rmdir()
        except OSError:
            logger.debug("%s stays", self._staging)
        return True

    def statistics(self) -> WriterStatistics:
        """Count what was written and what was lost."""
        return WriterStatistics(
            written=self._written,
            written_bytes=self._written_bytes,
            dropped=self._dropped,
            failed=self._failed,
            waiting=self._taken - self._written - self._failed,
            last_failure=self._last_failure,
            folder_bytes=self.folder_bytes,
        )

    def _running(self) -> bool:
        """Start the thread if need be; False where none can be started, as during interpreter shutdown."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="phasewatch-capture-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._threaded = False
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, PendingSpan):
                self._write(item)
            else:
                item()

    def _write(self, span: PendingSpan) -> None:
        try:
            size_bytes = self._store(span)
        except Exception as error:  # noqa: BLE001  # whatever one span runs into, training and the next span go on
            self._failed += 1
            self._last_failure = f"{type(error).__name__}: {error}"
            if self._failed == 1:
                logger.warning(
                    "cannot write a span to %s: %s. It is lost, later ones will be counted only",
                    self.node_folder,
                    self._last_failure,
                )
        else:
            self._written += 1
            self._written_bytes += size_bytes

    def _store(self, span: PendingSpan) -> int:
        name = format_span_name(span.start, span.end)
        parse_span_name(name)  # a step of -1 or a clock that says NaN would make a folder that nobody can read
        files = span.render()
        staged = f"{self._staging}/{name}"
        self._make(staged)
        try:
            for file, data in files.items():
                write_file(f"{staged}/{file}", data)
            os.rename(staged, f"{self.node_folder}/{name}")  # noqa: PTH104 - hot, and Path is slow
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        size_bytes = sum(map(len, files.values()))
        self.folder_bytes = self.folder_bytes + size_bytes if self._measured else size_of_folder(self.node_folder)
        self._measured = True
        return size_bytes

    def _make(self, staged: str) -> None:
        try:
            os.mkdir(staged)  # noqa: PTH102 - hot, and Path is slow
        except FileNotFoundError:
            if not self._base_made:
                self._base.mkdir(parents=True, exist_ok=True)
            elif not self._base.is_dir():
                raise FileNotFoundError(errno.ENOENT, "The base folder is gone", str(self._base)) from None
            self._staging.mkdir(parents=True, exist_ok=True)
            os.mkdir(staged)  # noqa: PTH102
        self._base_made = True


def write_file(path: str, data: bytes) -> None:
    """Write a whole file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def size_of_folder(folder: Path) -> int:
    """Add up the files of all span folders in bytes; what vanishes meanwhile or cannot be read counts nothing."""
    size_bytes = 0
    try:
        for span in os.scandir(folder):
            if span.is_dir(follow_symlinks=False):
                with os.scandir(span.path) as files:
                    size_bytes += sum(file.stat(follow_symlinks=False).st_size for file in files)
    except OSError as error:
        logger.debug("the size of %s is not known fully: %s", folder, error)
    return size_bytes
