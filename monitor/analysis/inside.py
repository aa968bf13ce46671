"""Answers from a source of profiles that this process takes in: the daemon's own ingest, index and selection, with rows
in memory. Everything that waits lives on a thread of its own; answers are made on the caller's."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from monitor.analysis.answering import Selected, always, with_trees
from monitor.analysis.intake import MOST_FILE_BYTES, Intake, IntakeEnded, OpenSource, Skipped, run_intake
from monitor.analysis.loop_thread import ENDED, STOP_SECONDS, LoopThread
from monitor.analysis.skipping import SeveralRunsWarning, SkippedFileWarning, warn_caller
from monitor.analysis.waiting import wait_and_tell
from monitor.answers import FrameTable, PhaseStats, Scope, SpanRow
from monitor.catalog import Catalog
from monitor.errors import MonitorError
from monitor.finding import Chosen, Finder, SpanListing, in_order
from monitor.index import Index
from monitor.layout import HTML_FILE, SpanKey
from monitor.memory_store import MemoryStore
from monitor.reading import FileData, LocalFile, read_file
from monitor.selection import Question
from monitor.sources.base import FileRef
from monitor.tables import StatsTable


class SourceAnswers:
    """Answers from one source. Safe to use from several threads.

    Reading begins at once, so that much is there when the first question comes. The index is changed on the loop's
    thread, also between calls, when a file becomes whole; whoever changes or reads it holds its guard meanwhile.

    Args:
        place: what the source reads, for people.
    """

    def __init__(self, open_source: OpenSource, place: str) -> None:
        self._place = place
        self._one_refresh = threading.Lock()
        self._guard = threading.Lock()
        self._index = Index(Catalog())
        self._store = MemoryStore()
        self._finder = Finder(self._index)
        self._loaded = self._settled = self._closed = False
        self._told: set[Skipped] = set()
        self._bases = 1
        self._loop = LoopThread("phasewatch analysis")
        self._running: Future[None]
        self._intake: Intake
        try:
            self._running, self._intake = self._loop.begin(
                run_intake, self._index, self._store, open_source, self._guard
            )
        except BaseException:
            self._loop.stop()
            raise
        self._end = weakref.finalize(self, self._loop.stop)

    def refresh(self) -> None:
        """Take in what is new; costs a look at each folder above the spans where nothing is.

        Raises:
            SourceUnavailable: the source cannot be read now. MonitorError: the reading has ended; says why.
        """
        self._refuse_closed()
        with self._one_refresh:
            self._refuse_ended()
            if self._settled and self._intake.source.unchanged() and self._intake.ingest.at_rest:
                return
            self._settled = False  # an interrupted wait leaves a poll under way, during which nothing is known
            waiting = self._loop.start(self._intake.refresh)
            try:
                wait_and_tell(waiting, self._running, self._progress)
            except IntakeEnded:
                wait((self._running,), STOP_SECONDS)  # it is ending, and then tells why
            self._refuse_ended()
            self._loaded = self._settled = True
            skipped = self._loop.start(self._intake.troubles).result()
        self._tell_of(skipped)
        self._tell_of_several_runs()

    def select(self, question: Question, scope: Scope) -> Selected | None:
        """Find the spans that a question selects. Rows of spans never change, so adding them up can wait; running
        totals do, so they are taken now."""
        with self._looking() as finder:
            chosen = finder.choose(question, scope)
            if not len(chosen.numbers):
                return None
            groups = finder.groups(question, scope)
            known = None if groups is None else always(finder.add_up(groups, scope, callers=True))
        return Selected(
            table=known or partial(self._table, chosen, scope),
            tree=partial(self._tree, chosen),
            rows=partial(self._rows, chosen),
        )

    def training_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up each pair of modes that has spans."""
        with self._looking() as finder:
            return finder.training_phases(scope, callers=True)

    def job_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up the three job phases."""
        with self._looking() as finder:
            return finder.job_phases(scope, callers=True)

    def training_phase_trees(self, scope: Scope) -> list[tuple[PhaseStats, FrameTable]]:
        """Add up and merge the sessions of each pair of modes that has spans."""
        with self._looking() as finder:
            return with_trees(finder.training_phases(scope, callers=True), finder.training_phase_frames(scope))

    def job_phase_trees(self, scope: Scope) -> list[tuple[PhaseStats, FrameTable]]:
        """Add up and merge the sessions of the three job phases."""
        with self._looking() as finder:
            return with_trees(finder.job_phases(scope, callers=True), finder.job_phase_frames(scope))

    def profiles(self, scope: Scope) -> list[SpanRow]:
        """List all spans, by (start time, node)."""
        with self._looking() as finder:
            return finder.profiles(scope, after=0, limit=len(self._index.spans))

    def listing(self, scope: Scope) -> SpanListing:
        """List all spans, by (start time, node), as columns."""
        with self._looking() as finder:
            return finder.listing(scope)

    def version(self) -> object:
        """Return something that changes with the index."""
        return self._index.generation

    def nodes(self, scope: Scope) -> list[str]:
        """List the nodes that have spans, sorted."""
        with self._looking() as finder:
            return sorted({row.node for row in finder.nodes(scope)})

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
        """End the thread and the decoders, and whoever waits for them; later calls are refused."""
        self._closed = True
        self._end()

    def __repr__(self) -> str:
        return self._place

    # -- inside ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _looking(self) -> Iterator[Finder]:
        """Hold the index as it is for as long as the block lasts; reads what there is first, where nothing was yet."""
        self._refuse_closed()
        if not self._loaded:
            self.refresh()
        with self._guard:
            yield self._finder

    def _refuse_closed(self) -> None:
        self._loop.refuse_forked()
        if self._closed:
            raise MonitorError("this analysis was closed: make a new one")

    def _refuse_ended(self) -> None:
        self._refuse_closed()
        if not self._running.done():
            return
        if self._running.cancelled() or self._running.exception() is None:
            raise MonitorError(ENDED)
        error = self._running.exception()
        raise MonitorError(
            f"the reading of {self._place} has failed ({root_of(error)}): make a new analysis"
        ) from error

    def _table(self, chosen: Chosen, scope: Scope) -> StatsTable:
        self._loop.refuse_forked()
        entry, measures = self._store.sum_entries(chosen.numbers)
        with self._guard:
            return self._finder.table(entry, measures, chosen.bounds, scope, callers=True)

    def _tree(self, chosen: Chosen) -> FrameTable:
        self._loop.refuse_forked()
        path, seconds = self._store.sum_paths(chosen.numbers)
        with self._guard:
            return self._finder.tree(path, seconds, chosen.bounds)

    def _rows(self, chosen: Chosen) -> list[SpanRow]:
        self._loop.refuse_forked()
        with self._guard:
            return in_order(self._finder.rows(chosen.numbers))

    def _progress(self) -> tuple[int, int]:
        return len(self._index.spans), self._intake.source.statistics().spans_seen

    def _tell_of(self, skipped: Iterable[Skipped]) -> None:
        """Warn of each file that could not be used, once for each of its versions."""
        for file in skipped:
            if file not in self._told:
                self._told.add(file)
                warn_caller(f"skipped {file.path}: {file.reason}", SkippedFileWarning)

    def _tell_of_several_runs(self) -> None:
        """Warn where the profiles of several runs are added together, once for each set of them."""
        bases = sorted({folder.partition("/framework/")[0] for folder in self._index.catalog.folders})
        if len(bases) > 1 and len(bases) != self._bases:
            self._bases = len(bases)
            shown = ", ".join(bases[:5]) + (", …" if len(bases) > 5 else "")
            message = f"profiles of {len(bases)} runs are added together; give one of {shown}"
            warn_caller(message, SeveralRunsWarning)


def root_of(error: BaseException | None) -> BaseException | None:
    """Return the first error inside groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
