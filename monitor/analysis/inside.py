"""Answers from a source of profiles that this process takes in: the daemon's own ingest, index and selection, with rows
in memory. Everything that waits lives on a thread of its own; answers are made on the caller's."""

from __future__ import annotations

import threading
import warnings
import weakref
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from monitor.analysis.answering import Selected, always
from monitor.analysis.intake import MOST_FILE_BYTES, Intake, OpenSource, run_intake
from monitor.analysis.loop_thread import LoopThread
from monitor.analysis.waiting import wait_and_tell
from monitor.answers import FrameTable, PhaseFrames, PhaseStats, Scope, SpanRow
from monitor.catalog import Catalog
from monitor.errors import MonitorError
from monitor.finding import Chosen, Finder, SpanListing
from monitor.index import Index
from monitor.layout import HTML_FILE, SpanKey
from monitor.memory_store import MemoryStore
from monitor.reading import FileData, LocalFile, read_file
from monitor.selection import Question
from monitor.sources.base import FileRef
from monitor.tables import StatsTable


class SkippedFileWarning(UserWarning):
    """A profile could not be used and is missing from the answers; it is looked at again when it changes."""


class SourceAnswers:
    """Answers from one source. Safe to use from several threads.

    Reading begins at once, so that much is there when the first question comes.

    Args:
        place: what the source reads, for people.
    """

    def __init__(self, open_source: OpenSource, place: str) -> None:
        self._place = place
        self._lock = threading.RLock()
        self._index = Index(Catalog())
        self._store = MemoryStore()
        self._finder = Finder(self._index)
        self._loaded = self._closed = False
        self._told: set[tuple[str, object]] = set()
        self._loop = LoopThread("phasewatch analysis")
        try:
            self._running, self._intake = self._begin(open_source)
        except BaseException:
            self._loop.stop()
            raise
        self._end = weakref.finalize(self, self._loop.stop)

    def refresh(self) -> None:
        """Take in what is new; costs a look at each folder above the spans where nothing is."""
        with self._lock:
            self._refuse_closed()
            if self._loaded and self._intake.source.unchanged() and self._intake.ingest.settled:
                return
            waiting = self._loop.start(self._intake.refresh)
            wait_and_tell(waiting, self._running, self._progress)
            self._loaded = True
            self._tell_of_skipped()

    def select(self, question: Question, scope: Scope) -> Selected | None:
        """Find the spans that a question selects. Rows of spans never change, so adding them up can wait; running
        totals do, so they are taken now."""
        with self._lock:
            self._load_once()
            chosen = self._finder.choose(question, scope)
            if not len(chosen.numbers):
                return None
            groups = self._finder.groups(question, scope)
            known = None if groups is None else always(self._finder.add_up(groups, scope, callers=True))
        return Selected(
            spans=len(chosen.numbers),
            table=known or partial(self._table, chosen, scope),
            tree=partial(self._tree, chosen),
            rows=partial(self._rows, chosen),
        )

    def training_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up each pair of modes that has spans."""
        with self._lock:
            self._load_once()
            return self._finder.training_phases(scope, callers=True)

    def job_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up the three job phases."""
        with self._lock:
            self._load_once()
            return self._finder.job_phases(scope, callers=True)

    def training_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of each pair of modes that has spans."""
        with self._lock:
            self._load_once()
            return self._finder.training_phase_frames(scope)

    def job_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of the three job phases."""
        with self._lock:
            self._load_once()
            return self._finder.job_phase_frames(scope)

    def profiles(self, scope: Scope) -> list[SpanRow]:
        """List all spans, by (start time, node)."""
        with self._lock:
            self._load_once()
            return self._finder.profiles(scope, after=0, limit=len(self._index.spans))

    def listing(self, scope: Scope) -> SpanListing:
        """List all spans, by (start time, node), as columns."""
        with self._lock:
            self._load_once()
            return self._finder.listing(scope)

    def version(self) -> object:
        """Return something that changes with the index."""
        return self._index.generation

    def nodes(self, scope: Scope) -> list[str]:
        """List the nodes that have spans, sorted."""
        with self._lock:
            self._load_once()
            return sorted({row.node for row in self._finder.nodes(scope)})

    def read(self, row: SpanRow) -> bytes:
        """Read a span's data file from the source."""
        near = self._intake.source.near(row)
        if near is not None:
            return read_file(near, MOST_FILE_BYTES).data
        self._refuse_closed()
        key = SpanKey(framework=row.framework, profiler=row.profiler, node=row.node, span=row.name)
        ref = FileRef(key=key, span=row.span, path=row.path)
        (found,) = self._loop.start(partial(self._intake.source.read, max_bytes=MOST_FILE_BYTES), [ref]).result()
        if isinstance(found, LocalFile):
            return read_file(found, MOST_FILE_BYTES).data
        if isinstance(found, FileData):
            return found.data
        raise found

    def page(self, row: SpanRow) -> str:
        """Return where the picture of a sampled session lies on this machine, having brought it there."""
        near = self._intake.source.near(row)
        picture = None if near is None else Path(near.path).with_name(HTML_FILE)
        if picture is not None and picture.exists():
            return str(picture)
        self._refuse_closed()
        return self._loop.start(self._intake.source.fetch_picture, row).result()

    def picture(self, path: str) -> str | None:
        """Return where the picture beside a data file lies; None where there is none."""
        return self._intake.source.picture(path)

    def place(self, path: str) -> str:
        """Return where a data file lies for whoever wants to open it."""
        return self._intake.source.place(path)

    def close(self) -> None:
        """End the thread and the decoders; later calls are refused."""
        with self._lock:
            self._closed = True
        self._end()

    def __repr__(self) -> str:
        return self._place

    # -- inside ----------------------------------------------------------------------------------------------------

    def _begin(self, open_source: OpenSource) -> tuple[Future[None], Intake]:
        return self._loop.begin(run_intake, self._index, self._store, open_source)

    def _load_once(self) -> None:
        self._refuse_closed()
        if not self._loaded:
            self.refresh()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise MonitorError("this analysis was closed: make a new one")

    def _table(self, chosen: Chosen, scope: Scope) -> StatsTable:
        with self._lock:
            entry, measures = self._store.sum_entries(chosen.numbers)
            return self._finder.table(entry, measures, chosen.bounds, scope, callers=True)

    def _tree(self, chosen: Chosen) -> FrameTable:
        with self._lock:
            path, seconds = self._store.sum_paths(chosen.numbers)
            return self._finder.tree(path, seconds, chosen.bounds)

    def _rows(self, chosen: Chosen) -> list[SpanRow]:
        with self._lock:
            return self._finder.rows(chosen)

    def _progress(self) -> tuple[int, int]:
        return len(self._index.spans), self._intake.source.statistics().spans_seen

    def _tell_of_skipped(self) -> None:
        """Warn of each file that could not be used, once for each of its versions.

        A folder without its file is the normal case while training runs, and is told of when it stays like that.
        """
        waiting, aside = self._intake.ingest.troubles()
        for trouble in [*waiting, *aside]:
            path = trouble.ref.ref.path
            if (path, trouble.version) in self._told or (trouble.kind == "missing" and not trouble.aside):
                continue
            self._told.add((path, trouble.version))
            warnings.warn(f"skipped {path}: {trouble.reason}", SkippedFileWarning, stacklevel=5)
