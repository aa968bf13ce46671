"""Has span folders written off the training thread, many at a time. Owns the queue and what became of each span; never
raises into the training script, never makes it wait except in flush and close, and those with a deadline."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from monitor.capture.folders import NodeFolder, size_of_folder
from monitor.capture.settings import QUEUE_SPANS
from monitor.capture.snapshots import Pack, files_of
from monitor.capture.writing_process import Outcome, WritingProcess, message
from monitor.spans import Moment, format_span_name

logger = logging.getLogger("phasewatch.capture")

FLUSH_SECONDS = 4.0
"""What close() and what the exit may each cost when the disk is stuck: `docker stop` kills 10 s after SIGTERM."""

GATHER_SECONDS = 0.2
"""How long a span may wait for others: each time that the thread wakes up, the training waits for its turn."""

WORTH_A_PROCESS = 4
"""So many spans in that time, or more, are not written by the thread: fewer take less than a hundredth of the time."""

MOST_AT_ONCE = 32
"""Spans that are sent to the process at once: as many are held twice, some 30 kB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSpan:
    """A span that has been recorded and not written.

    Attributes:
        pack: takes it apart; called on the thread that writes, and once more where the process fails.
    """

    start: Moment
    end: Moment
    pack: Pack

    @property
    def name(self) -> str:
        """Name its folder."""
        return format_span_name(self.start, self.end)


Work: TypeAlias = PendingSpan | Callable[[], object] | None
"""A span, something small to do, or the end."""


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

    Args:
        base: made when the first span is written; not made again if it goes away, for it may be a mount.
        node_folder: the folder below it that gets the span folders.
        threaded: False writes in the calling thread.
        queue_spans: how many spans may wait beside the one in hand; beyond it they are dropped and counted.
        process: writes instead of the thread where spans come quickly.
        heavy: whether a single span is worth the process, and waiting for its start.
    """

    def __init__(
        self,
        base: Path,
        node_folder: Path,
        *,
        threaded: bool = True,
        queue_spans: int = QUEUE_SPANS,
        process: WritingProcess | None = None,
        heavy: bool = False,
    ) -> None:
        self.node_folder = node_folder
        # The process id keeps two jobs apart that were given the same node by mistake.
        self._folder = NodeFolder(str(base), str(node_folder), f"{node_folder}/.tmp-{os.getpid()}")
        self._threaded = threaded
        self._limit = queue_spans
        self._process = process
        self._heavy = heavy
        # SimpleQueue, because put() takes part of a microsecond, and a signal handler may interrupt it and put as well.
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._hurry: queue.SimpleQueue[None] = queue.SimpleQueue()
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
            self._count([self._store(span, again=False)])
        elif self._taken - self._written - self._failed > self._limit:
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
            if self._queue.qsize() * 2 == self._limit:
                self._hurry.put(None)

    def run_soon(self, work: Callable[[], object]) -> None:
        """Do some small work where spans are written; it must not raise."""
        if self._closed or not self._threaded or not self._running():
            work()
        else:
            self._put_now(work)

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all that was submitted is written; False when the deadline passed first."""
        if self._thread is None:
            return True
        if self._closed:
            self._thread.join(timeout_seconds)
            return not self._thread.is_alive()
        done = threading.Event()
        self._put_now(done.set)
        return done.wait(timeout_seconds)

    def close(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        """Flush, stop the thread and take nothing more; False when the deadline passed first."""
        if self._closed:
            return True
        self._closed = True
        if self._thread is not None:
            self._put_now(None)
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                logger.warning(
                    "%s spans were still not written to %s after %s s and are lost",
                    self.statistics().waiting,
                    self.node_folder,
                    timeout_seconds,
                )
                return False
        self._folder.close()
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

    def _put_now(self, work: Work) -> None:
        """Have something done without waiting for more."""
        self._queue.put(work)
        self._hurry.put(None)

    def _run(self) -> None:
        ended = False
        while not ended:
            items = self._gather()
            spans = [item for item in items if isinstance(item, PendingSpan)]
            # Somebody who waits for few spans, such as the program's end, is not kept waiting for a process to start.
            quick = len(spans) >= WORTH_A_PROCESS and len(spans) == len(items)
            for start in range(0, len(spans), MOST_AT_ONCE):
                self._write(spans[start : start + MOST_AT_ONCE], quick)
            for item in items:
                if item is None:
                    ended = True
                elif not isinstance(item, PendingSpan):
                    item()

    def _gather(self) -> list[Work]:
        """Wait for something to do, and a little longer for more, unless there is hurry."""
        items = [self._queue.get()]
        with suppress(queue.Empty):
            self._hurry.get(timeout=GATHER_SECONDS)
        with suppress(queue.Empty):
            while len(items) <= self._limit:
                items.append(self._queue.get_nowait())
        return items

    def _write(self, spans: Sequence[PendingSpan], quick: bool) -> None:
        process, again = self._process, False
        if process is not None and (self._heavy or quick or process.started) and process.ready(wait=self._heavy):
            if self._send(process, spans):
                return
            again = True
            self._folder.clean()
        self._count([self._store(span, again) for span in spans])

    def _store(self, span: PendingSpan, again: bool) -> Outcome:
        """Write a span here; or count what the process wrote before it was gone."""
        try:
            there = self._folder.size_of(span.name) if again else None
            return self._folder.store(span.name, files_of(span.pack())) if there is None else there
        except Exception as error:  # noqa: BLE001  # whatever one span runs into, training and the next span go on
            return f"{type(error).__name__}: {error}"

    def _send(self, process: WritingProcess, spans: Sequence[PendingSpan]) -> bool:
        """Have the process write; False where it is gone, and nothing has been counted."""
        packed: list[bytes] = []
        broken: list[Outcome] = []
        for span in spans:
            try:
                packed.append(message(span.name, span.pack()))
            except Exception as error:  # noqa: BLE001  # as above
                broken.append(f"{type(error).__name__}: {error}")
        outcomes = process.store(self._folder.place, packed)
        if outcomes is None:
            return False
        self._count(outcomes + broken)
        return True

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        sizes = [outcome for outcome in outcomes if isinstance(outcome, int)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
        if sizes:
            self._folder.base_made = True
            known = self._measured
            self.folder_bytes = self.folder_bytes + sum(sizes) if known else size_of_folder(self.node_folder)
            self._measured = True
            self._written_bytes += sum(sizes)
            self._written += len(sizes)
        if failures:
            self._last_failure = failures[-1]
            if not self._failed:
                logger.warning(
                    "cannot write a span to %s: %s. It is lost, later ones will be counted only",
                    self.node_folder,
                    failures[0],
                )
            self._failed += len(failures)
