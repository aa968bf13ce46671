"""The in-memory index: every span, and running totals per training phase. Pure; changed by one task, read by all.

Each batch is added once, in the order of span numbers, and nothing is ever recomputed. Sums are plain float64 added one
after the other in that order, so replaying the same rows after a restart gives the same bits, which is what lets
Prometheus counters continue without a reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.catalog import Catalog, SeriesKey
from monitor.histogram import Histogram
from monitor.profiles.columns import NO_CALLER, Floats, Ids
from monitor.rows import Positions, ProfileRows, SpanRows, take_spans
from monitor.selection import SpanColumns, job_phase_numbers
from monitor.spans import JOB_PHASES, JobPhaseName
from monitor.spread import RecentSteps
from monitor.sums import Sums, grown
from monitor.tables import Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """One training phase of one series; in a training phase that holds spans of several job phases, one of each."""

    job: str
    framework: str
    profiler: str
    node: str
    start_mode: int
    end_mode: int
    job_phase: JobPhaseName


class Group:
    """The running totals of one training phase (and job phase) of one series.

    Attributes:
        key: who and which phase. series: the series' number.
        spans: how many; first_us, last_us: earliest start and latest end.
        entries: sums by entry. labels: never decreasing sums by metric label.
        path_seconds: sampled self seconds by path, shape (paths seen so far,).
        negative: how many function values were below zero and so kept out of `labels`.
    """

    __slots__ = ("entries", "first_us", "key", "labels", "last_us", "negative", "path_seconds", "series", "spans")

    def __init__(self, key: GroupKey, series: int) -> None:
        self.key = key
        self.series = series
        self.spans = 0
        self.first_us = float("inf")
        self.last_us = float("-inf")
        self.entries = Sums()
        self.labels = Sums()
        self.path_seconds = np.zeros(0)
        self.negative = 0

    def add_paths(self, path: Ids, seconds: Floats) -> None:
        """Add sampled self seconds in the order given."""
        if len(path):
            self.path_seconds = grown(self.path_seconds, int(path.max()) + 1)
            np.add.at(self.path_seconds, path, seconds)


class SpanTable:
    """All spans whose rows are stored, as growing columns in the order of their numbers."""

    def __init__(self) -> None:
        self.name: list[str] = []
        self._columns: dict[str, npt.NDArray[np.generic]] = {
            "number": np.empty(0, np.int32),
            "series": np.empty(0, np.int32),
            "folder": np.empty(0, np.int32),
            "start_mode": np.empty(0, np.int8),
            "end_mode": np.empty(0, np.int8),
            "start_phase": np.empty(0, np.int8),
            "end_phase": np.empty(0, np.int8),
            "start_step": np.empty(0, np.int64),
            "end_step": np.empty(0, np.int64),
            "start_us": np.empty(0, np.float64),
            "end_us": np.empty(0, np.float64),
        }

    def __len__(self) -> int:
        return len(self.name)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one column, as a view."""
        return self._columns[name][: len(self.name)]

    def said(self) -> SpanColumns:
        """Return what the names say, for selection."""
        columns: dict[str, Any] = {field.name: self.column(field.name) for field in fields(SpanColumns)}
        return SpanColumns(**columns)

    def append(self, rows: SpanRows) -> None:
        """Add spans at the end."""
        before, after = len(self.name), len(self.name) + len(rows.name)
        for name, column in self._columns.items():
            source = rows if name in ("number", "series", "folder") else rows.columns
            bigger = grown(column, after)
            bigger[before:after] = getattr(source, name)
            self._columns[name] = bigger
        self.name.extend(rows.name)

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Drop the rows that are not kept."""
        length = len(self.name)
        self._columns = {name: column[:length][kept] for name, column in self._columns.items()}
        self.name = [self.name[row] for row in np.flatnonzero(kept).tolist()]


class Index:
    """Spans and totals. `generation` rises with every change, so that a reader can tell whether its copy is current."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.spans = SpanTable()
        self.groups: list[Group] = []
        self.generation = 0
        self.next_number = 0
        self.span_seconds: dict[tuple[int, int, int, int], Histogram] = {}
        self.recent_steps = RecentSteps()
        self.last_step: dict[tuple[int, int], int] = {}
        self.last_end_us: dict[int, float] = {}
        self._names: dict[SeriesKey, set[str]] = {}
        self._group_numbers: dict[tuple[int, int, int, int], int] = {}

    def names_of(self, series: SeriesKey) -> Set[str]:
        """Return the names of a series' spans, those that retention has dropped included; the set grows as they
        come."""
        return self._names.setdefault(series, set())

    def spans_by_job(self) -> dict[str, int]:
        """Count the spans of each job, those that retention has dropped included; the counts never fall."""
        counts: dict[str, int] = {}
        for group in self.groups:
            counts[group.key.job] = counts.get(group.key.job, 0) + group.spans
        return counts

    def add_spans(self, rows: SpanRows, kept: npt.NDArray[np.bool_] | None = None) -> Ids:
        """Count spans into their groups.

        Args:
            kept: which of them still have their rows in the store; the others are counted but cannot be selected.

        Returns:
            The group of each span.
        """
        groups = self._group_of(rows)
        self._count(rows, groups)
        self._count_lengths(rows)
        self.spans.append(rows if kept is None else take_spans(rows, np.flatnonzero(kept)))
        if len(rows.number):
            self.next_number = max(self.next_number, int(rows.number[-1]) + 1)
        self.generation += 1
        return groups

    def add_rows(self, spans: Ids, groups: Ids, profiles: ProfileRows) -> None:
        """Add the rows of spans, given with their groups in rising order of number, to the totals."""
        row_group = groups[np.searchsorted(spans, profiles.span)]
        for number, picked in runs_of(row_group):
            self._add_entries(self.groups[number], profiles.entry[picked], profiles.measures.take(picked))
        sample_group = groups[np.searchsorted(spans, profiles.sample_span)]
        for number, picked in runs_of(sample_group):
            self.groups[number].add_paths(profiles.sample_path[picked], profiles.sample_self_seconds[picked])
        self.generation += 1

    def drop_spans(self, numbers: Ids) -> None:
        """Forget spans whose rows retention has dropped; totals and names stay."""
        self.spans.keep(~np.isin(self.spans.column("number"), numbers))
        self.generation += 1

    def _add_entries(self, group: Group, entry: Ids, measures: Measures) -> None:
        group.entries.add(entry, measures)
        own = np.flatnonzero(self.catalog.entry_caller[entry] == NO_CALLER)
        values = measures.take(own)
        labels = self.catalog.function_label[self.catalog.entry_function[entry[own]]]
        counted, negative = without_negative(values)
        group.labels.add(labels, counted)
        group.negative += negative

    def _count(self, rows: SpanRows, groups: Ids) -> None:
        said = rows.columns
        for number, picked in runs_of(groups):
            group = self.groups[number]
            start_us, end_us = said.start_us[picked], said.end_us[picked]
            group.spans += len(picked)
            group.first_us = min(group.first_us, float(start_us.min()))
            group.last_us = max(group.last_us, float(end_us.max()))
            last = float(end_us.max())
            self.last_end_us[group.series] = max(self.last_end_us.get(group.series, last), last)
            step = int(said.start_step[picked].max())
            if step >= 0:
                mode = (group.series, group.key.start_mode)
                self.last_step[mode] = max(self.last_step.get(mode, step), step)
        for number, picked in runs_of(rows.series):
            names = self._names.setdefault(self.catalog.series[number], set())
            names.update(rows.name[row] for row in picked.tolist())

    def _count_lengths(self, rows: SpanRows) -> None:
        said = rows.columns
        seconds = np.maximum((said.end_us - said.start_us) / 1e6, 0.0).tolist()
        keys = zip(
            rows.series.tolist(),
            said.start_mode.tolist(),
            said.start_phase.tolist(),
            said.end_phase.tolist(),
            strict=True,
        )
        for key, length in zip(keys, seconds, strict=True):
            histogram = self.span_seconds.get(key)
            if histogram is None:
                histogram = self.span_seconds[key] = Histogram()
            histogram.add(length)
        self.recent_steps.add(rows.series.tolist(), said, seconds)

    def _group_of(self, rows: SpanRows) -> Ids:
        said = rows.columns
        phase = job_phase_numbers(said)
        keys = zip(rows.series.tolist(), said.start_mode.tolist(), said.end_mode.tolist(), phase.tolist(), strict=True)
        return np.fromiter((self._group_number(key) for key in keys), dtype=np.int32, count=len(phase))

    def _group_number(self, key: tuple[int, int, int, int]) -> int:
        number = self._group_numbers.get(key)
        if number is None:
            series_number, start_mode, end_mode, phase = key
            series = self.catalog.series[series_number]
            number = len(self.groups)
            named = GroupKey(
                job=series.job,
                framework=series.framework,
                profiler=series.profiler,
                node=series.node,
                start_mode=start_mode,
                end_mode=end_mode,
                job_phase=JOB_PHASES[phase],
            )
            self.groups.append(Group(named, series_number))
            self._group_numbers[key] = number
        return number


def without_negative(measures: Measures) -> tuple[Measures, int]:
    """Put 0 for times below zero, which an off-CPU timer gives and a counter cannot take; also count them."""
    negative = int((measures.self_seconds < 0).sum() + (measures.cumulative_seconds < 0).sum())
    if not negative:
        return measures, 0
    own, cumulative = np.maximum(measures.self_seconds, 0.0), np.maximum(measures.cumulative_seconds, 0.0)
    return replace(measures, self_seconds=own, cumulative_seconds=cumulative), negative


def runs_of(group: Ids) -> Iterator[tuple[int, Positions]]:
    """Give each group number that occurs with the positions of its rows, in their order."""
    if not len(group):
        return
    order = np.argsort(group, kind="stable")
    bounds = np.flatnonzero(np.diff(group[order])) + 1
    for picked in np.split(order, bounds):
        yield int(group[picked[0]]), picked
