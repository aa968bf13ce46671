"""The metrics page: rendered in a worker thread when something has changed, and kept ready, so a scrape costs nothing.

What goes into it is copied on the event loop between two batches, so a page never shows half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import anyio
from anyio.abc import TaskStatus
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import monitor
from monitor.budget import GroupBudget, Series
from monitor.budgets import AllBudgets
from monitor.exposition import GROUP_LABELS, PACKAGE_FAMILIES, function_page, group_label_values, group_lines
from monitor.histogram import BOUNDS_SECONDS
from monitor.index import GroupKey, Index
from monitor.spans import JobPhaseName, PythonProfileModes, StepPhase
from monitor.step_metrics import SERIES_LABELS, series_values, step_families

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RENDERING_SHARE = 0.05
"""Rendering may take this share of the time; a large page is made less often."""

SETTLED_REFRESH_SECONDS = 10.0
"""While no profiles come, only the daemon's own numbers change."""

USUAL_PHASES: tuple[tuple[JobPhaseName, PythonProfileModes, PythonProfileModes], ...] = (
    ("initialization", PythonProfileModes.PRE_STEP_ZERO, PythonProfileModes.TRAIN),
    ("training_loop", PythonProfileModes.TRAIN, PythonProfileModes.TRAIN),
    ("finalization", PythonProfileModes.TRAIN, PythonProfileModes.POST_HOOK_CLOSE),
)
"""Every job has them sooner or later, so they are counted from 0."""
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
    """What cuts copies of one phase's totals into series."""

    functions: Callable[[], Series]
    packages: Callable[[], Series]


class MetricsPage:
    """Keeps the page ready.

    Args:
        readings: gives the daemon's own numbers; called on the loop.
        refresh_seconds: least time between two renderings.
        page: what to show until the first one.
    """

    def __init__(
        self,
        *,
        index: Index,
        budgets: AllBudgets,
        readings: Callable[[], Iterable[Reading]],
        refresh_seconds: float = 1.0,
        page: bytes = b"",
    ) -> None:
        self._index = index
        self._budgets = budgets
        self._readings = readings
        self._refresh = refresh_seconds
        self._index_families, self._own_families = Ready(), Ready()
        self._index_registry = CollectorRegistry(auto_describe=False)
        self._index_registry.register(self._index_families)
        self._own_registry = CollectorRegistry(auto_describe=False)
        self._own_registry.register(self._own_families)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._own_registry)
        self._index_text = self._function_text = b""
        self._lines: dict[int, list[str]] = {}
        self._drawn: dict[int, tuple[int, GroupBudget, GroupBudget]] = {}
        self._page = page
        self._drawn_state = (-1, -1)
        self._seconds = 0.0

    def page(self) -> bytes:
        """Return the page as it was last rendered."""
        return self._page

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Render until cancelled; `started()` once there is a page."""
        await self.render()
        task_status.started()
        last = anyio.current_time()
        while True:
            await anyio.sleep(max(self._refresh, self._seconds / RENDERING_SHARE))
            settled = (self._index.generation, self._budgets.version) == self._drawn_state
            if not settled or anyio.current_time() - last >= SETTLED_REFRESH_SECONDS:
                await self.render()
                last = anyio.current_time()

    async def render(self) -> None:
        """Render the page as things stand now."""
        started = perf_counter()
        changed = self._changed_groups()
        state = (self._index.generation, self._budgets.version)
        moved = state != self._drawn_state
        self._drawn_state = state
        if moved:
            self._index_families.families = list(self._collect_index())
        self._own_families.families = list(self._collect_own())
        self._page = await anyio.to_thread.run_sync(self._draw, changed, moved)
        self._seconds = perf_counter() - started

    def _changed_groups(self) -> dict[int, ChangedGroup]:
        changed: dict[int, ChangedGroup] = {}
        for number, group in enumerate(self._index.groups):
            functions, packages = (each.of(number) for each in self._budgets.each)
            state = (group.spans, functions, packages)
            if not (functions.published and packages.published) or self._drawn.get(number) == state:
                continue
            self._drawn[number] = state
            changed[number] = ChangedGroup(
                functions=partial(functions.series, *self._budgets.functions.totals(group)),
                packages=partial(packages.series, *self._budgets.packages.totals(group)),
            )
        return changed

    def _draw(self, changed: Mapping[int, ChangedGroup], moved: bool) -> bytes:
        """Render what has changed; runs in a worker thread."""
        functions, packages = (each.names.texts for each in self._budgets.each)
        for number, group in changed.items():
            key = self._index.groups[number].key
            self._lines[number] = [
                *group_lines(key, group.functions(), functions),
                *group_lines(key, group.packages(), packages, PACKAGE_FAMILIES),
            ]
        if changed:
            page = function_page(self._lines[number] for number in sorted(self._lines))
            self._function_text = page.encode("utf-8", "replace")
        if moved:
            self._index_text = generate_latest(self._index_registry)
        return self._index_text + generate_latest(self._own_registry) + self._function_text

    def _collect_index(self) -> Iterator[Metric]:
        yield from self._phase_families()
        yield self._span_family()
        yield self._step_family()
        yield from step_families(self._index)
        yield self._refused_family()

    def _collect_own(self) -> Iterator[Metric]:
        yield from reading_families(self._readings())
        info = GaugeMetricFamily("phasewatch_build_info", "The version that runs; always 1.", labels=["version"])
        info.add_metric([monitor.__version__], 1)
        yield info

    def _phase_families(self) -> Iterator[Metric]:
        profiles = CounterMetricFamily(
            "phasewatch_profiles",
            "Profiles added up, by phase. May be summed over phases and nodes.",
            labels=GROUP_LABELS,
        )
        counts = {group.key: group.spans for group in self._index.groups}
        for key in [*counts, *usual_keys(self._index)]:
            profiles.add_metric(group_label_values(key), counts.get(key, 0))
        yield profiles
        last = GaugeMetricFamily(
            "phasewatch_last_profile_timestamp_seconds",
            "When the newest profile ended, by the clock of its node; seconds since the epoch. Not to be summed.",
            labels=SERIES_LABELS,
        )
        for number, end_us in self._index.last_end_us.items():
            last.add_metric(series_values(self._index, number), end_us / 1e6)
        yield last

    def _span_family(self) -> Metric:
        family = HistogramMetricFamily(
            "phasewatch_span_seconds",
            "Length of profiled spans in seconds, by the mode in which they start and their phases. May be summed over "
            "all labels but le.",
            labels=[*SERIES_LABELS, "mode", "start_phase", "end_phase"],
        )
        bounds = [*(repr(bound) for bound in BOUNDS_SECONDS), "+Inf"]
        for (series, mode, start, end), histogram in self._index.span_seconds.items():
            where = [
                *series_values(self._index, series),
                PythonProfileModes(mode).word,
                PHASES[start].value,
                PHASES[end].value,
            ]
            buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
            family.add_metric(where, buckets, histogram.sum)
        return family

    def _step_family(self) -> Metric:
        family = GaugeMetricFamily(
            "phasewatch_last_step",
            "The highest step profiled so far, by mode; never falls. Not to be summed.",
            labels=[*SERIES_LABELS, "mode"],
        )
        for (series, mode), step in self._index.last_step.items():
            family.add_metric([*series_values(self._index, series), PythonProfileModes(mode).word], step)
        return family

    def _refused_family(self) -> Metric:
        family = CounterMetricFamily(
            "phasewatch_function_series_limit_hits",
            "Functions that got no series of their own because the phase had no room, added up over choices; there is "
            "a choice at most every metrics.refresh_seconds, while profiles come. May be summed over phases and nodes.",
            labels=GROUP_LABELS,
        )
        for number, group in enumerate(self._index.groups):
            family.add_metric(group_label_values(group.key), self._budgets.functions.refused[number])
        return family


def usual_keys(index: Index) -> Iterator[GroupKey]:
    """Give the usual phases of each series that have no spans yet."""
    known = {(group.series, group.key.job_phase, group.key.start_mode, group.key.end_mode) for group in index.groups}
    for number in index.last_end_us:
        series = index.catalog.series[number]
        for phase, start, end in USUAL_PHASES:
            if (number, phase, start, end) not in known:
                yield GroupKey(
                    job=series.job,
                    framework=series.framework,
                    profiler=series.profiler,
                    node=series.node,
                    start_mode=start,
                    end_mode=end,
                    job_phase=phase,
                )


class Ready(Collector):
    """Hands families that were prepared on the event loop to a registry."""

    def __init__(self) -> None:
        self.families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """Return what was prepared."""
        return self.families


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
