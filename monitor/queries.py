"""The engine: answers questions from index and store. It changes neither; phases come from totals, ranges from rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import anyio
import numpy as np
import numpy.typing as npt

from monitor.answers import FrameTable, JobRow, NodeRow, PhaseStats, Scope, SpanRow
from monitor.catalog import SeriesKey
from monitor.index import Group, Index
from monitor.layout import data_file
from monitor.profiles.columns import NO_CALLER, Floats, Ids
from monitor.rows import Positions
from monitor.selection import BetweenModes, JobPhase, PreStepZero, Question, marks
from monitor.spans import JOB_PHASES, PythonProfileModes, parse_any_name
from monitor.store import Store
from monitor.sums import merge_paths, merge_sums
from monitor.tables import CallerTable, Measures, StatsTable
from monitor.watchers import Subscription, Watchers

MICROSECONDS = 1e6


class Queries:
    """Answers for the API.

    Args:
        refresh: polls the sources and waits until what they found is stored.
        status: the daemon's state, ready for JSON.
        page: the metrics page.
    """

    def __init__(
        self,
        *,
        index: Index,
        store: Store,
        watchers: Watchers,
        refresh: Callable[[], Awaitable[None]],
        status: Callable[[], Mapping[str, object]],
        page: Callable[[], bytes],
    ) -> None:
        self._index = index
        self._store = store
        self._watchers = watchers
        self._refresh = refresh
        self._status = status
        self._page = page
        self._order: tuple[int, Positions] = (-1, np.empty(0, dtype=np.int64))

    # -- answers ---------------------------------------------------------------------------------------------------

    async def stats(self, question: Question, scope: Scope, *, callers: bool) -> StatsTable:
        """Add up the spans that a question selects."""
        wanted = phase_filter(question)
        if wanted is not None:
            return self._add_up([group for group in self._groups(scope) if wanted(group)], scope, callers=callers)
        rows = self._select(question, scope)
        spans = self._index.spans
        numbers, starts, ends = (spans.column(name)[rows] for name in ("number", "start_us", "end_us"))
        entry, measures = await anyio.to_thread.run_sync(self._store.sum_entries, numbers, abandon_on_cancel=True)
        return self._table(
            entry,
            measures,
            scope,
            callers=callers,
            spans=len(rows),
            first_us=float(starts.min(initial=np.inf)),
            last_us=float(ends.max(initial=-np.inf)),
        )

    async def training_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up each pair of modes that has spans, in the order of the modes."""
        pairs: dict[tuple[int, int], list[Group]] = {}
        for group in self._groups(scope):
            pairs.setdefault((group.key.start_mode, group.key.end_mode), []).append(group)
        return [
            PhaseStats(
                table=self._add_up(pairs[pair], scope, callers=callers),
                start_mode=PythonProfileModes(pair[0]),
                end_mode=PythonProfileModes(pair[1]),
                job_phase=None,
            )
            for pair in sorted(pairs)
        ]

    async def job_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up the three job phases, in their order; a phase without spans is empty."""
        groups = self._groups(scope)
        return [
            PhaseStats(
                table=self._add_up([g for g in groups if g.key.job_phase == phase], scope, callers=callers),
                start_mode=None,
                end_mode=None,
                job_phase=phase,
            )
            for phase in JOB_PHASES
        ]

    async def frames(self, question: Question, scope: Scope) -> FrameTable:
        """Merge the sampled call trees of the spans that a question selects."""
        wanted = phase_filter(question)
        if wanted is not None:
            path, seconds = merge_paths([group.path_seconds for group in self._groups(scope) if wanted(group)])
        else:
            numbers = self._index.spans.column("number")[self._select(question, scope)]
            path, seconds = await anyio.to_thread.run_sync(self._store.sum_paths, numbers, abandon_on_cancel=True)
        return self._tree(path, seconds)

    def profiles(self, scope: Scope, *, after: int, limit: int) -> list[SpanRow]:
        """List spans by (start time, node), from position `after` on."""
        order = self._time_order()
        inside = self._in_scope(scope)[order]
        return [self.span_row(row) for row in order[inside][after : after + limit].tolist()]

    def span_row(self, row: int) -> SpanRow:
        """Describe the span at a position of the index."""
        spans, catalog = self._index.spans, self._index.catalog
        series = catalog.series[int(spans.column("series")[row])]
        folder = catalog.folders[int(spans.column("folder")[row])]
        name = spans.name[row]
        return SpanRow(
            job=series.job,
            framework=series.framework,
            profiler=series.profiler,
            node=series.node,
            name=name,
            span=parse_any_name(name),
            path=f"{folder}/{name}/{data_file(series.profiler)}",
        )

    def jobs(self) -> list[JobRow]:
        """List the jobs that have spans."""
        jobs: dict[str, list[Group]] = {}
        for group in self._index.groups:
            jobs.setdefault(group.key.job, []).append(group)
        return [
            JobRow(
                job=job,
                spans=sum(group.spans for group in groups),
                nodes=len({group.key.node for group in groups}),
                first_seconds=min(group.first_us for group in groups) / MICROSECONDS,
                last_seconds=max(group.last_us for group in groups) / MICROSECONDS,
            )
            for job, groups in sorted(jobs.items())
        ]

    def nodes(self, scope: Scope) -> list[NodeRow]:
        """List who wrote spans, one row for each job, framework, profiler and node."""
        series: dict[int, list[Group]] = {}
        for group in self._groups(scope):
            series.setdefault(group.series, []).append(group)
        rows = [self._node_row(number, groups) for number, groups in series.items()]
        return sorted(rows, key=lambda row: (row.job, row.framework, row.profiler, row.node))

    async def refresh(self) -> None:
        """Poll the sources and wait until what they found is stored or known not to be ready."""
        await self._refresh()

    def status(self) -> Mapping[str, object]:
        """Return the daemon's state, ready for JSON."""
        return self._status()

    def metrics_page(self) -> bytes:
        """Return the last rendered metrics page."""
        return self._page()

    def subscribe(self) -> AbstractContextManager[Subscription]:
        """Listen to new spans while the block lasts."""
        return self._watchers.subscribe()

    # -- choosing --------------------------------------------------------------------------------------------------

    def _series(self, scope: Scope) -> list[int]:
        numbers = [number for number, key in enumerate(self._index.catalog.series) if admits(scope, key)]
        if scope.nodes != ("any",):
            return numbers
        firsts: dict[int, float] = {}
        for group in self._index.groups:
            firsts[group.series] = min(group.first_us, firsts.get(group.series, np.inf))
        present = [number for number in numbers if number in firsts]
        if not present:
            return []
        keys = self._index.catalog.series
        node = keys[min(present, key=lambda number: (firsts[number], keys[number].node))].node
        return [number for number in present if keys[number].node == node]

    def _groups(self, scope: Scope) -> list[Group]:
        series = set(self._series(scope))
        return [group for group in self._index.groups if group.series in series]

    def _in_scope(self, scope: Scope) -> npt.NDArray[np.bool_]:
        wanted = np.zeros(len(self._index.catalog.series) + 1, dtype=np.bool_)
        wanted[self._series(scope)] = True
        return marks(wanted[self._index.spans.column("series")])

    def _select(self, question: Question, scope: Scope) -> Positions:
        return np.flatnonzero(question.mask(self._index.spans.said()) & self._in_scope(scope))

    def _time_order(self) -> Positions:
        """Return all spans by (start time, node); kept until the index changes."""
        generation, order = self._order
        if generation != self._index.generation:
            nodes = sorted({key.node for key in self._index.catalog.series})
            rank = {node: place for place, node in enumerate(nodes)}
            ranks = np.asarray([rank[key.node] for key in self._index.catalog.series] or [0])
            spans = self._index.spans
            order = np.lexsort((ranks[spans.column("series")], spans.column("start_us")))
            self._order = (self._index.generation, order)
        return order

    # -- building --------------------------------------------------------------------------------------------------

    def _add_up(self, groups: Sequence[Group], scope: Scope, *, callers: bool) -> StatsTable:
        entry, measures = merge_sums([group.entries.all() for group in groups])
        return self._table(
            entry,
            measures,
            scope,
            callers=callers,
            spans=sum(group.spans for group in groups),
            first_us=min((group.first_us for group in groups), default=np.inf),
            last_us=max((group.last_us for group in groups), default=-np.inf),
        )

    def _table(
        self,
        entry: Ids,
        measures: Measures,
        scope: Scope,
        *,
        callers: bool,
        spans: int,
        first_us: float,
        last_us: float,
    ) -> StatsTable:
        catalog = self._index.catalog
        caller = catalog.entry_caller[entry]
        function = catalog.entry_function[entry]
        own = np.flatnonzero(caller == NO_CALLER)
        table = None
        if callers:
            edges = np.flatnonzero(caller != NO_CALLER)
            table = CallerTable(function=function[edges], caller=caller[edges], measures=measures.take(edges))
        return StatsTable(
            spans=spans,
            from_seconds=None if not spans else first_us / MICROSECONDS,
            to_seconds=None if not spans else last_us / MICROSECONDS,
            counts_calls=scope.profiler != "pyinstrument",
            names=catalog.functions,
            function=function[own],
            measures=measures.take(own),
            callers=table,
        )

    def _tree(self, path: Ids, seconds: Floats) -> FrameTable:
        catalog = self._index.catalog
        parents, functions = catalog.path_parent, catalog.path_function
        self_seconds = np.zeros(len(parents))
        self_seconds[path] = seconds
        return FrameTable(
            names=catalog.functions, path_parent=parents, path_function=functions, self_seconds=self_seconds
        )

    def _node_row(self, number: int, groups: Sequence[Group]) -> NodeRow:
        key = self._index.catalog.series[number]
        steps = [step for (series, _), step in self._index.last_step.items() if series == number]
        return NodeRow(
            job=key.job,
            framework=key.framework,
            profiler=key.profiler,
            node=key.node,
            spans=sum(group.spans for group in groups),
            first_seconds=min(group.first_us for group in groups) / MICROSECONDS,
            last_seconds=max(group.last_us for group in groups) / MICROSECONDS,
            last_step=max(steps, default=None),
        )


def admits(scope: Scope, key: SeriesKey) -> bool:
    """Tell whether a scope takes a series, but for the node "any"."""
    return (
        scope.profiler in (None, key.profiler)
        and (not scope.jobs or key.job in scope.jobs)
        and (not scope.frameworks or key.framework in scope.frameworks)
        and (not scope.nodes or scope.nodes == ("any",) or key.node in scope.nodes)
    )


def phase_filter(question: Question) -> Callable[[Group], bool] | None:
    """Return which groups answer a question, or None where it takes single spans."""
    match question:
        case BetweenModes(start_mode=start, end_mode=end):
            return lambda group: group.key.start_mode == start and group.key.end_mode == end
        case PreStepZero():
            return lambda group: group.key.job_phase == "initialization"
        case JobPhase(name=name):
            return lambda group: group.key.job_phase == name
        case _:
            return None
