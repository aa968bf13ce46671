"""The engine: answers questions from index and store. It changes neither; phases come from totals, ranges from rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import anyio
import anyio.lowlevel

from monitor.answers import FrameTable, Health, JobRow, NodeRow, PageWish, PhaseFrames, PhaseStats, Scope, SpanRow
from monitor.catalog import SeriesKey
from monitor.finding import Finder, in_order
from monitor.index import Index
from monitor.selection import Question
from monitor.store import Store
from monitor.tables import StatsTable
from monitor.watchers import Subscription, Watchers

SPANS_AT_ONCE = 500


class Queries:
    """Answers for the API.

    Args:
        refresh: polls the sources and waits until what they found is stored.
        read: reads the data file of a span from its source; raises ReadError or SourceUnavailable.
        status: the daemon's state, ready for JSON. health: whether it is alive and ready.
        retry: reads files again that were set aside, of some jobs and nodes; returns how many.
        page: gives a metrics page; None while there is none yet.
        jobs: tells of each job whether its series have not ended.
    """

    def __init__(
        self,
        *,
        index: Index,
        store: Store,
        watchers: Watchers,
        refresh: Callable[[], Awaitable[None]],
        read: Callable[[SpanRow], Awaitable[bytes]],
        status: Callable[[], Mapping[str, object]],
        health: Callable[[], Health],
        retry: Callable[[Sequence[str], Sequence[str]], int],
        page: Callable[[PageWish], Awaitable[bytes | None]],
        jobs: Callable[[], Mapping[str, bool]],
    ) -> None:
        self._finder = Finder(index)
        self._store = store
        self._watchers = watchers
        self._refresh = refresh
        self._read = read
        self._status = status
        self._health = health
        self._retry = retry
        self._page = page
        self._jobs = jobs

    async def stats(self, question: Question, scope: Scope, *, callers: bool) -> StatsTable:
        """Add up the spans that a question selects."""
        groups = self._finder.groups(question, scope)
        if groups is not None:
            return self._finder.add_up(groups, scope, callers=callers)
        chosen = self._finder.choose(question, scope)
        entry, measures = await anyio.to_thread.run_sync(
            self._store.sum_entries, chosen.numbers, abandon_on_cancel=True
        )
        return self._finder.table(entry, measures, chosen.bounds, scope, callers=callers)

    async def training_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up each pair of modes that has spans, in the order of the modes."""
        return self._finder.training_phases(scope, callers=callers)

    async def job_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up the three job phases, in their order; a phase without spans is empty."""
        return self._finder.job_phases(scope, callers=callers)

    async def frames(self, question: Question, scope: Scope) -> FrameTable:
        """Merge the sampled call trees of the spans that a question selects."""
        groups = self._finder.groups(question, scope)
        if groups is not None:
            return self._finder.grow(groups)
        chosen = self._finder.choose(question, scope)
        path, seconds = await anyio.to_thread.run_sync(self._store.sum_paths, chosen.numbers, abandon_on_cancel=True)
        return self._finder.tree(path, seconds, chosen.bounds)

    def training_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of each pair of modes that has spans."""
        return self._finder.training_phase_frames(scope)

    def job_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of the three job phases."""
        return self._finder.job_phase_frames(scope)

    async def chosen(self, question: Question, scope: Scope) -> list[SpanRow]:
        """Describe the spans that a question selects, by (start time, node); lets others work in between."""
        numbers = self._finder.choose(question, scope).numbers
        rows: list[SpanRow] = []
        for start in range(0, len(numbers), SPANS_AT_ONCE):
            rows += self._finder.rows(numbers[start : start + SPANS_AT_ONCE])
            await anyio.lowlevel.checkpoint()
        return in_order(rows)

    def profiles(self, scope: Scope, *, after: int, limit: int) -> list[SpanRow]:
        """List spans by (start time, node), from position `after` on."""
        return self._finder.profiles(scope, after=after, limit=limit)

    def span_row(self, row: int) -> SpanRow:
        """Describe the span at a position of the index."""
        return self._finder.span_row(row)

    async def read_profile(self, series: SeriesKey, name: str) -> bytes | None:
        """Read a span's data file from its source; None where there is no such span.

        Raises:
            ReadError: the file is gone or must not be read. SourceUnavailable: its source is no longer watched.
        """
        row = self._finder.find_span(series, name)
        return None if row is None else await self._read(row)

    def jobs(self) -> list[JobRow]:
        """List the jobs that have spans."""
        return self._finder.jobs()

    def nodes(self, scope: Scope) -> list[NodeRow]:
        """List who wrote spans, one row for each job, framework, profiler and node."""
        return self._finder.nodes(scope)

    async def refresh(self) -> None:
        """Poll the sources and wait until what they found is stored or known not to be ready."""
        await self._refresh()

    def status(self) -> Mapping[str, object]:
        """Return the daemon's state, ready for JSON."""
        return self._status()

    def health(self) -> Health:
        """Say whether the daemon is alive and ready."""
        return self._health()

    def retry(self, jobs: Sequence[str], nodes: Sequence[str]) -> int:
        """Read files again that were set aside, of these jobs and nodes or of all; returns how many."""
        return self._retry(jobs, nodes)

    async def metrics_page(self, wish: PageWish) -> bytes | None:
        """Return a metrics page of what was last rendered; None while there is none yet."""
        return await self._page(wish)

    def metrics_jobs(self) -> Mapping[str, bool]:
        """Tell of each job, also one that is watched and has written nothing, whether its series have not ended."""
        return self._jobs()

    def subscribe(self) -> AbstractContextManager[Subscription]:
        """Listen to new spans while the block lasts."""
        return self._watchers.subscribe()
