"""The metrics page: drawn in a worker thread when something has changed, and kept, so that a scrape costs little.

What goes into it is copied on the event loop between two batches, so a page never shows half of one. It is drawn in
parts, one for each family and job; only those of jobs that have something new are drawn again. A family is a series
family of the client library that `_collect_index` (with the label `training_job`) or `_collect_own` gives, or, where a
phase has a series for each function, one of `exposition.FUNCTION_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from time import perf_counter, time

import anyio
from anyio.abc import TaskStatus
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

import monitor
from monitor.answers import PageWish
from monitor.budget import GroupBudget
from monitor.budgets import Budgets
from monitor.endings import Endings
from monitor.exposition import (
    FUNCTION_HEADS,
    GROUP_LABELS,
    Head,
    encoded,
    group_label_values,
    group_lines,
    head_of,
    lines_by,
)
from monitor.histogram import BOUNDS_SECONDS
from monitor.index import Index
from monitor.page import DAEMON, Family, Part, Sheet, page_of
from monitor.profiles.columns import Ids
from monitor.spans import PythonProfileModes, StepPhase
from monitor.tables import Measures

RENDERING_SHARE = 0.05
"""Rendering may take this share of the time; a large page is made less often."""

SETTLED_REFRESH_SECONDS = 10.0
"""While no profiles come, only the daemon's own numbers change."""

KEPT_PAGES_BYTES = 32 * 2**20
"""Pages are kept for the next scrape up to this size, those that were asked for last."""

JOB_LABEL = "training_job"
SERIES_LABELS = (JOB_LABEL, "node", "framework", "profiler")
PHASES = tuple(StepPhase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number of the daemon itself.

    Attributes:
        kind: "counter" (its name ends in _total on the page) or "gauge".
    """

    name: str
    kind: str
    help: str
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedGroup:
    """A copy of one phase's totals, and how to cut them."""

    budget: GroupBudget
    labels: Ids
    sums: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be drawn, copied on the event loop.

    Attributes:
        moved: jobs with spans that are not drawn yet; `families` has their samples. groups: their functions.
        ended: jobs whose series end.
    """

    moved: Set[str]
    ended: frozenset[str]
    groups: Mapping[int, ChangedGroup]
    families: list[Metric]
    own: list[Metric]


class MetricsPage:
    """Keeps the page ready.

    Args:
        readings: gives the daemon's own numbers; called on the loop.
        refresh_seconds: least time between two renderings.
        sheet: what to show until the first one.
        wall_clock: seconds since the epoch; by it jobs end.
    """

    def __init__(
        self,
        *,
        index: Index,
        budgets: Budgets,
        endings: Endings,
        readings: Callable[[], Iterable[Reading]],
        refresh_seconds: float = 1.0,
        sheet: Sheet | None = None,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        self._index = index
        self._budgets = budgets
        self._endings = endings
        self._readings = readings
        self._refresh = refresh_seconds
        self._wall_clock = wall_clock
        self._process = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)
        self._families: dict[str, tuple[Head, dict[str, Part]]] = {}
        self._lines: dict[int, list[str]] = {}
        self._drawn_groups: dict[int, tuple[int, GroupBudget]] = {}
        self._drawn_jobs: dict[str, int] = {}
        self._drawn_state: tuple[int, int, frozenset[str]] | None = None
        self._sheet = sheet
        self._pages: dict[PageWish, tuple[list[tuple[Head, tuple[Part, ...]]], bytes]] = {}
        self._drawing = anyio.Lock()
        self._seconds = 0.0

    @property
    def sheet(self) -> Sheet | None:
        """What was last rendered."""
        return self._sheet

    async def page(self, wish: PageWish) -> bytes | None:
        """Return a page of what was last rendered, put together where it is not the one of the last scrape."""
        if self._sheet is None:
            return None
        chosen = self._sheet.chosen(wish)
        kept, page = self._pages.pop(wish, (None, b""))
        if kept != chosen:
            page = await anyio.to_thread.run_sync(page_of, chosen, wish)
        self._pages[wish] = chosen, page
        while len(self._pages) > 1 and sum(len(body) for _, body in self._pages.values()) > KEPT_PAGES_BYTES:
            del self._pages[next(iter(self._pages))]
        return page

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Render until cancelled; `started()` once there is a page."""
        await self.render()
        task_status.started()
        last = anyio.current_time()
        while True:
            await anyio.sleep(max(self._refresh, self._seconds / RENDERING_SHARE))
            if self._state() != self._drawn_state or anyio.current_time() - last >= SETTLED_REFRESH_SECONDS:
                await self.render()
                last = anyio.current_time()

    async def render(self) -> None:
        """Render the page as things stand now."""
        async with self._drawing:
            started = perf_counter()
            self._drawn_state = self._state()
            self._sheet = await anyio.to_thread.run_sync(self._draw, self._changes())
            self._seconds = perf_counter() - started

    def _state(self) -> tuple[int, int, frozenset[str]]:
        ended = self._endings.ended(self._index, self._wall_clock())
        return self._index.generation, self._budgets.version, ended

    def _changes(self) -> Changes:
        ended = self._endings.ended(self._index, self._wall_clock())
        spans = {job: count for job, count in self._index.spans_by_job().items() if job not in ended}
        moved = {job for job, count in spans.items() if self._drawn_jobs.get(job) != count}
        self._drawn_jobs = spans
        return Changes(
            moved=moved,
            ended=ended,
            groups=self._changed_groups(ended),
            families=list(self._collect_index(moved)) if moved else [],
            own=list(self._collect_own()),
        )

    def _changed_groups(self, ended: Set[str]) -> dict[int, ChangedGroup]:
        changed: dict[int, ChangedGroup] = {}
        for number, group in enumerate(self._index.groups):
            budget = self._budgets.of(number)
            state = (group.spans, budget)
            if group.key.job in ended:
                self._drawn_groups.pop(number, None)
            elif budget.published and self._drawn_groups.get(number) != state:
                labels, sums = group.labels.all()
                self._drawn_groups[number] = state
                changed[number] = ChangedGroup(budget=budget, labels=labels.copy(), sums=sums.copy())
        return changed

    def _draw(self, changes: Changes) -> Sheet:
        """Render what has changed; runs in a worker thread."""
        for metric in changes.families:
            for job, text in lines_by(JOB_LABEL, metric).items():
                self._put(head_of(metric), job, text)
        for _, parts in self._families.values():
            parts.pop(DAEMON, None)
        for metric in [*changes.own, *self._process.collect()]:
            self._put(head_of(metric), DAEMON, "".join(lines_by(JOB_LABEL, metric).values()))
        self._draw_functions(changes)
        for _, parts in self._families.values():
            for job in changes.ended & parts.keys():
                del parts[job]
        families = tuple(Family(head=head, parts=dict(parts)) for head, parts in self._families.values())
        return Sheet(families=families, ended=changes.ended)

    def _draw_functions(self, changes: Changes) -> None:
        texts = self._index.catalog.labels
        for number, group in changes.groups.items():
            series = group.budget.series(group.labels, group.sums)
            self._lines[number] = group_lines(self._index.groups[number].key, series, texts)
        by_job: dict[str, list[list[str]]] = {}
        touched = {self._index.groups[number].key.job for number in changes.groups}
        for number in sorted(self._lines):
            job = self._index.groups[number].key.job
            if job in changes.ended:
                del self._lines[number]
            elif job in touched:
                by_job.setdefault(job, []).append(self._lines[number])
        for job, groups in by_job.items():
            for head, lines in zip(FUNCTION_HEADS, zip(*groups, strict=True), strict=True):
                self._put(head, job, "".join(lines))

    def _put(self, head: Head, job: str, text: str) -> None:
        """Put lines in the place of a job's in a family; where they are the same, all that was made of them stays."""
        _, parts = self._families.setdefault(head.name, (head, {}))
        lines = encoded(text)
        if job not in parts or parts[job].text != lines:
            parts[job] = Part(lines)

    def _collect_index(self, jobs: Set[str]) -> Iterator[Metric]:
        """Give the families of some jobs, each sample with its job in JOB_LABEL."""
        yield from self._phase_families(jobs)
        yield self._span_family(jobs)
        yield self._step_family(jobs)

    def _collect_own(self) -> Iterator[Metric]:
        yield from reading_families(self._readings())
        info = GaugeMetricFamily("phasewatch_build_info", "The version that runs; always 1.", labels=["version"])
        info.add_metric([monitor.__version__], 1)
        yield info

    def _phase_families(self, jobs: Set[str]) -> Iterator[Metric]:
        profiles = CounterMetricFamily("phasewatch_profiles", "Profiles added up, by phase.", labels=GROUP_LABELS)
        for group in self._index.groups:
            if group.key.job in jobs:
                profiles.add_metric(group_label_values(group.key), group.spans)
        yield profiles
        last = GaugeMetricFamily(
            "phasewatch_last_profile_timestamp_seconds",
            "When the newest profile ended, by the clock of its node; seconds since the epoch.",
            labels=SERIES_LABELS,
        )
        for number, end_us in self._index.last_end_us.items():
            if self._index.catalog.series[number].job in jobs:
                last.add_metric(self._series_values(number), end_us / 1e6)
        yield last

    def _span_family(self, jobs: Set[str]) -> Metric:
        family = HistogramMetricFamily(
            "phasewatch_span_seconds",
            "Length of profiled spans, by the mode in which they start and their phases.",
            labels=[*SERIES_LABELS, "mode", "start_phase", "end_phase"],
        )
        bounds = [*(repr(bound) for bound in BOUNDS_SECONDS), "+Inf"]
        for (series, mode, start, end), histogram in self._index.span_seconds.items():
            if self._index.catalog.series[series].job not in jobs:
                continue
            where = [
                *self._series_values(series),
                PythonProfileModes(mode).word,
                PHASES[start].value,
                PHASES[end].value,
            ]
            buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
            family.add_metric(where, buckets, histogram.sum)
        return family

    def _step_family(self, jobs: Set[str]) -> Metric:
        family = GaugeMetricFamily(
            "phasewatch_last_step", "The highest step profiled so far.", labels=[*SERIES_LABELS, "mode"]
        )
        for (series, mode), step in self._index.last_step.items():
            if self._index.catalog.series[series].job in jobs:
                family.add_metric([*self._series_values(series), PythonProfileModes(mode).word], step)
        return family

    def _series_values(self, number: int) -> list[str]:
        key = self._index.catalog.series[number]
        return [key.job, key.node, key.framework, key.profiler]


def reading_families(readings: Iterable[Reading]) -> list[Metric]:
    """Group readings of one name into families, in order of first sight."""
    families: dict[str, Metric] = {}
    for reading in readings:
        family = families.get(reading.name)
        if family is None:
            kind = CounterMetricFamily if reading.kind == "counter" else GaugeMetricFamily
            family = families[reading.name] = kind(reading.name, reading.help, labels=list(reading.labels))
        family.add_metric(list(reading.labels.values()), reading.value)  # type: ignore[attr-defined]
    return list(families.values())
