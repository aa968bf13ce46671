"""The metrics page: drawn in a worker thread when something has changed, and kept, so that a scrape costs little.

What goes into it is copied on the event loop between two batches, so a page never shows half of one. It is drawn in
parts, one for each family and job; only those of jobs that have something new are drawn again. A family is a series
family of the client library that `_collect_index` (with the label `training_job`) or `_collect_own` gives, or, where a
phase has a series for each function or package, one of `exposition.FUNCTION_FAMILIES` or `PACKAGE_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from time import perf_counter, time

import anyio
from anyio.abc import TaskStatus
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

import monitor
from monitor.answers import PageWish
from monitor.budget import GroupBudget, Series
from monitor.budgets import AllBudgets
from monitor.endings import Endings
from monitor.exposition import (
    FUNCTION_HEADS,
    PACKAGE_FAMILIES,
    Head,
    encoded,
    group_lines,
    head_of,
    lines_by,
)
from monitor.index import Index
from monitor.page import DAEMON, Family, Part, Sheet, page_of
from monitor.phase_metrics import phase_families
from monitor.step_metrics import JOB_LABEL, step_families

RENDERING_SHARE = 0.05
"""Rendering may take this share of the time; a large page is made less often."""

SETTLED_REFRESH_SECONDS = 10.0
"""While no profiles come, only the daemon's own numbers change."""

KEPT_PAGES_BYTES = 32 * 2**20
"""Pages are kept for the next scrape up to this size, those that were asked for last."""


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
    """What cuts copies of one phase's totals into series."""

    functions: Callable[[], Series]
    packages: Callable[[], Series]


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
        facts: gives what nodes say about how they were profiled, by series number.
        refresh_seconds: least time between two renderings.
        held: tells that less is stored than was shown before, so that jobs are left out: a gap is no reset.
        sheet: what to show until the first one.
        wall_clock: seconds since the epoch; by it jobs end.
    """

    def __init__(
        self,
        *,
        index: Index,
        budgets: AllBudgets,
        endings: Endings,
        readings: Callable[[], Iterable[Reading]],
        held: Callable[[], bool] = lambda: False,
        facts: Callable[[], Mapping[int, Mapping[str, object]]] = dict,
        refresh_seconds: float = 1.0,
        sheet: Sheet | None = None,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        self._index = index
        self._budgets = budgets
        self._endings = endings
        self._readings = readings
        self._held = held
        self._facts = facts
        self._refresh = refresh_seconds
        self._wall_clock = wall_clock
        self._process = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)
        self._families: dict[str, tuple[Head, dict[str, Part]]] = {}
        self._lines: dict[int, list[str]] = {}
        self._drawn_groups: dict[int, tuple[int, GroupBudget, GroupBudget]] = {}
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
        return self._index.generation, self._budgets.version, self._left_out()

    def _left_out(self) -> frozenset[str]:
        """Return the jobs that are not shown: those that ended, and all while the store is rebuilt."""
        if self._held():
            return frozenset(self._index.spans_by_job())
        return self._endings.ended(self._index, self._wall_clock())

    def _changes(self) -> Changes:
        ended = self._left_out()
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
            functions, packages = (each.of(number) for each in self._budgets.each)
            state = (group.spans, functions, packages)
            if group.key.job in ended:
                self._drawn_groups.pop(number, None)
            elif functions.published and packages.published and self._drawn_groups.get(number) != state:
                self._drawn_groups[number] = state
                changed[number] = ChangedGroup(
                    functions=partial(functions.series, *self._budgets.functions.totals(group)),
                    packages=partial(packages.series, *self._budgets.packages.totals(group)),
                )
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
        functions, packages = (each.names.texts for each in self._budgets.each)
        for number, group in changes.groups.items():
            key = self._index.groups[number].key
            self._lines[number] = [
                *group_lines(key, group.functions(), functions),
                *group_lines(key, group.packages(), packages, PACKAGE_FAMILIES),
            ]
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
        yield from phase_families(self._index, self._budgets.functions, self._facts(), jobs)
        yield from step_families(self._index, jobs)

    def _collect_own(self) -> Iterator[Metric]:
        yield from reading_families(self._readings())
        info = GaugeMetricFamily("phasewatch_build_info", "The version that runs; always 1.", labels=["version"])
        info.add_metric([monitor.__version__], 1)
        yield info


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
