"""Finds what a question is about in the index, and builds answers of what was added up. Pure and synchronous: daemon
and notebook classes share it; whoever owns the rows adds up those of single spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from monitor.answers import ANY_NODE, FrameTable, JobRow, NodeRow, PhaseFrames, PhaseStats, Scope, SpanRow
from monitor.catalog import SeriesKey
from monitor.index import Group, Index
from monitor.layout import data_file
from monitor.profiles.columns import NO_CALLER, Floats, Ids
from monitor.rows import Positions, take_columns
from monitor.selection import BetweenModes, JobPhase, PreStepZero, Question, SpanColumns, marks
from monitor.spans import JOB_PHASES, JobPhaseName, PythonProfileModes, parse_any_name
from monitor.sums import merge_paths, merge_sums
from monitor.tables import CallerTable, Measures, StatsTable

MICROSECONDS = 1e6

Bounds: TypeAlias = tuple[int, float, float]
"""The number of spans, their earliest start and latest end in microseconds; infinities without spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanListing:
    """Spans as columns.

    Attributes:
        keys: who wrote them. series: positions in it, shape (spans,).
        said: what their names say. paths: of their data files.
    """

    keys: Sequence[SeriesKey]
    series: Ids
    said: SpanColumns
    paths: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The spans that a question selects.

    Attributes:
        numbers: their keys in the store, rising.
        first_us, last_us: earliest start and latest end; infinities without spans.
    """

    numbers: Ids
    first_us: float
    last_us: float

    @property
    def bounds(self) -> Bounds:
        """How many there are, and when."""
        return len(self.numbers), self.first_us, self.last_us


class Finder:
    """Looks things up in an index, which it never changes."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._order: tuple[int, Positions] = (-1, np.empty(0, dtype=np.int64))

    # -- choosing --------------------------------------------------------------------------------------------------

    def choose(self, question: Question, scope: Scope) -> Chosen:
        """Return the spans that a question selects."""
        spans = self._index.spans
        rows = self._select(question, scope)
        starts, ends = spans.column("start_us")[rows], spans.column("end_us")[rows]
        return Chosen(
            numbers=spans.column("number")[rows],
            first_us=float(starts.min(initial=np.inf)),
            last_us=float(ends.max(initial=-np.inf)),
        )

    def groups(self, question: Question, scope: Scope) -> list[Group] | None:
        """Return the running totals that answer a question, or None where it takes single spans."""
        wanted = phase_filter(question)
        return None if wanted is None else [group for group in self._groups(scope) if wanted(group)]

    def rows(self, numbers: Ids) -> list[SpanRow]:
        """Describe spans, given by rising numbers, that are still there; in the order of their numbers."""
        number = self._index.spans.column("number")
        places = np.searchsorted(number, numbers)
        places = places[places < len(number)]
        return [self.span_row(place) for place in places[np.isin(number[places], numbers)].tolist()]

    def _select(self, question: Question, scope: Scope) -> Positions:
        return np.flatnonzero(question.mask(self._index.spans.said()) & self._in_scope(scope))

    def _in_scope(self, scope: Scope) -> npt.NDArray[np.bool_]:
        wanted = np.zeros(len(self._index.catalog.series) + 1, dtype=np.bool_)
        wanted[self._series(scope)] = True
        return marks(wanted[self._index.spans.column("series")])

    def _series(self, scope: Scope) -> list[int]:
        numbers = [number for number, key in enumerate(self._index.catalog.series) if admits(scope, key)]
        if scope.nodes != ANY_NODE:
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

    def _time_order(self) -> Positions:
        """Return all spans by (start time, node); kept until the index changes."""
        generation, order = self._order
        if generation != self._index.generation:
            series = self._index.catalog.series
            sorted_series = sorted(range(len(series)), key=lambda number: place_of(series[number]))
            ranks = np.empty(max(len(series), 1), dtype=np.int64)
            ranks[sorted_series] = np.arange(len(series))
            spans = self._index.spans
            order = np.lexsort((ranks[spans.column("series")], spans.column("start_us")))
            self._order = (self._index.generation, order)
        return order

    # -- lists -----------------------------------------------------------------------------------------------------

    def profiles(self, scope: Scope, *, after: int, limit: int) -> list[SpanRow]:
        """List spans by (start time, node), from position `after` on."""
        order = self._time_order()
        inside = self._in_scope(scope)[order]
        return [self.span_row(row) for row in order[inside][after : after + limit].tolist()]

    def listing(self, scope: Scope) -> SpanListing:
        """List all spans of a scope by (start time, node), as columns."""
        order = self._time_order()
        rows = order[self._in_scope(scope)[order]]
        spans, catalog = self._index.spans, self._index.catalog
        series, folder = spans.column("series")[rows], spans.column("folder")[rows]
        files = [f"/{data_file(key.profiler)}" for key in catalog.series]
        folders = [f"{path}/" for path in catalog.folders]
        places = zip(folder.tolist(), rows.tolist(), series.tolist(), strict=True)
        return SpanListing(
            keys=catalog.series,
            series=series,
            said=take_columns(spans.said(), rows),
            paths=[f"{folders[place]}{spans.name[row]}{files[key]}" for place, row, key in places],
        )

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

    def find_span(self, series: SeriesKey, name: str) -> SpanRow | None:
        """Describe one span by its identity; None where there is none, or retention has dropped it."""
        if series not in self._index.catalog.series or name not in self._index.names_of(series):
            return None
        spans = self._index.spans
        number = self._index.catalog.series.index(series)
        here = (spans.column("series") == number) & (spans.column("start_us") == parse_any_name(name).start.time_us)
        named = (row for row in np.flatnonzero(here).tolist() if spans.name[row] == name)
        row = next(named, None)
        return None if row is None else self.span_row(row)

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

    # -- building --------------------------------------------------------------------------------------------------

    def training_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up each pair of modes that has spans, in the order of the modes."""
        return [
            PhaseStats(
                table=self.add_up(groups, scope, callers=callers), start_mode=start, end_mode=end, job_phase=None
            )
            for (start, end), groups in self._mode_pairs(scope)
        ]

    def job_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up the three job phases, in their order; a phase without spans is empty."""
        return [
            PhaseStats(
                table=self.add_up(groups, scope, callers=callers), start_mode=None, end_mode=None, job_phase=phase
            )
            for phase, groups in self._job_phase_groups(scope)
        ]

    def training_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of each pair of modes that has spans, in the order of the modes."""
        return [
            PhaseFrames(tree=self.grow(groups), start_mode=start, end_mode=end, job_phase=None)
            for (start, end), groups in self._mode_pairs(scope)
        ]

    def job_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of the three job phases, in their order."""
        return [
            PhaseFrames(tree=self.grow(groups), start_mode=None, end_mode=None, job_phase=phase)
            for phase, groups in self._job_phase_groups(scope)
        ]

    def _mode_pairs(self, scope: Scope) -> list[tuple[tuple[PythonProfileModes, PythonProfileModes], list[Group]]]:
        pairs: dict[tuple[int, int], list[Group]] = {}
        for group in self._groups(scope):
            pairs.setdefault((group.key.start_mode, group.key.end_mode), []).append(group)
        return [
            ((PythonProfileModes(start), PythonProfileModes(end)), pairs[start, end]) for start, end in sorted(pairs)
        ]

    def _job_phase_groups(self, scope: Scope) -> list[tuple[JobPhaseName, list[Group]]]:
        groups = self._groups(scope)
        return [(phase, [group for group in groups if group.key.job_phase == phase]) for phase in JOB_PHASES]

    def add_up(self, groups: Sequence[Group], scope: Scope, *, callers: bool) -> StatsTable:
        """Build the table of some groups' totals, a copy of them as they are now."""
        entry, measures = merge_sums([group.entries.all() for group in groups])
        return self.table(entry, measures, bounds_of(groups), scope, callers=callers)

    def table(self, entry: Ids, measures: Measures, bounds: Bounds, scope: Scope, *, callers: bool) -> StatsTable:
        """Build a table of sums by entry."""
        catalog = self._index.catalog
        spans, first_us, last_us = bounds
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

    def grow(self, groups: Sequence[Group]) -> FrameTable:
        """Build the merged call tree of some groups."""
        path, seconds = merge_paths([group.path_seconds for group in groups])
        return self.tree(path, seconds, bounds_of(groups))

    def tree(self, path: Ids, seconds: Floats, bounds: Bounds) -> FrameTable:
        """Build a call tree of self seconds by path."""
        catalog = self._index.catalog
        parents, functions = catalog.path_parent, catalog.path_function
        self_seconds = np.zeros(len(parents))
        self_seconds[path] = seconds
        spans, first_us, last_us = bounds
        return FrameTable(
            names=catalog.functions,
            path_parent=parents,
            path_function=functions,
            self_seconds=self_seconds,
            spans=spans,
            from_seconds=None if not spans else first_us / MICROSECONDS,
            to_seconds=None if not spans else last_us / MICROSECONDS,
        )


def bounds_of(groups: Sequence[Group]) -> Bounds:
    """Return the number of spans, earliest start and latest end of some groups."""
    return (
        sum(group.spans for group in groups),
        min((group.first_us for group in groups), default=np.inf),
        max((group.last_us for group in groups), default=-np.inf),
    )


def in_order(rows: list[SpanRow]) -> list[SpanRow]:
    """Sort spans by (start time, node)."""
    return sorted(rows, key=lambda row: (row.span.start.time_us, *place_of(row)))


def place_of(key: SeriesKey | SpanRow) -> tuple[str, str, str, str]:
    """Return what spans of equal start are ordered by: the node, as in the original, and then all that is known."""
    return key.node, key.profiler, key.framework, key.job


def admits(scope: Scope, key: SeriesKey) -> bool:
    """Tell whether a scope takes a series, but for the node "any"."""
    return (
        scope.profiler in (None, key.profiler)
        and (not scope.jobs or key.job in scope.jobs)
        and (not scope.frameworks or key.framework in scope.frameworks)
        and (not scope.nodes or scope.nodes == ANY_NODE or key.node in scope.nodes)
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
