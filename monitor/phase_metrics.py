"""The families about phases and their spans: how many, how long, the newest, and functions without a series. Reads the
index and the budgets; each sample says its job, so that those of one job can be drawn alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from monitor.budgets import Budgets
from monitor.exposition import GROUP_LABELS, group_label_values
from monitor.histogram import BOUNDS_SECONDS
from monitor.index import GroupKey, Index
from monitor.spans import JobPhaseName, PythonProfileModes, StepPhase
from monitor.step_metrics import SERIES_LABELS, series_values, word_of

USUAL_PHASES: tuple[tuple[JobPhaseName, PythonProfileModes, PythonProfileModes], ...] = (
    ("initialization", PythonProfileModes.PRE_STEP_ZERO, PythonProfileModes.TRAIN),
    ("training_loop", PythonProfileModes.TRAIN, PythonProfileModes.TRAIN),
    ("finalization", PythonProfileModes.TRAIN, PythonProfileModes.POST_HOOK_CLOSE),
)
"""Every job has them sooner or later, so they are counted from 0."""
PHASES = tuple(StepPhase)


def phase_families(
    index: Index, functions: Budgets, facts: Mapping[int, Mapping[str, object]], jobs: Set[str]
) -> Iterator[Metric]:
    """Return the families, with the samples of some jobs."""
    yield profiles_family(index, jobs)
    yield newest_family(index, jobs)
    yield span_family(index, jobs)
    yield refused_family(index, functions, jobs)
    yield overhead_family(index, facts, jobs)


def profiles_family(index: Index, jobs: Set[str]) -> Metric:
    """Count profiles."""
    family = CounterMetricFamily(
        "phasewatch_profiles", "Profiles added up, by phase. May be summed over phases and nodes.", labels=GROUP_LABELS
    )
    counts = {group.key: group.spans for group in index.groups}
    for key in [*counts, *usual_keys(index)]:
        if key.job in jobs:
            family.add_metric(group_label_values(key), counts.get(key, 0))
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


def newest_family(index: Index, jobs: Set[str]) -> Metric:
    """Tell when the newest profiles ended."""
    family = GaugeMetricFamily(
        "phasewatch_last_profile_timestamp_seconds",
        "When the newest profile ended, by the clock of its node; seconds since the epoch. Not to be summed.",
        labels=SERIES_LABELS,
    )
    for number, end_us in index.last_end_us.items():
        if index.catalog.series[number].job in jobs:
            family.add_metric(series_values(index, number), end_us / 1e6)
    return family


def span_family(index: Index, jobs: Set[str]) -> Metric:
    """Tell how long spans are."""
    family = HistogramMetricFamily(
        "phasewatch_span_seconds",
        "Length of profiled spans in seconds, by the mode in which they start and their phases. May be summed over all "
        "labels but le.",
        labels=[*SERIES_LABELS, "mode", "start_phase", "end_phase"],
    )
    bounds = [*(repr(bound) for bound in BOUNDS_SECONDS), "+Inf"]
    for (series, mode, start, end), histogram in index.span_seconds.items():
        if index.catalog.series[series].job in jobs:
            where = [*series_values(index, series), word_of(mode), PHASES[start].value, PHASES[end].value]
            buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
            family.add_metric(where, buckets, histogram.sum)
    return family


def refused_family(index: Index, functions: Budgets, jobs: Set[str]) -> Metric:
    """Count functions that got no series."""
    family = CounterMetricFamily(
        "phasewatch_function_series_limit_hits",
        "Functions that got no series of their own because the phase had no room, added up over choices; there is a "
        "choice at most every metrics.refresh_seconds, while profiles come. May be summed over phases and nodes.",
        labels=GROUP_LABELS,
    )
    for number, group in enumerate(index.groups):
        if group.key.job in jobs:
            family.add_metric(group_label_values(group.key), functions.refused[number])
    return family


def overhead_family(index: Index, facts: Mapping[int, Mapping[str, object]], jobs: Set[str]) -> Metric:
    """Tell what capture costs, where nodes say so."""
    family = GaugeMetricFamily(
        "phasewatch_capture_overhead_ratio",
        "Share of training time that capture itself has taken on the training thread, the profiler not counted, as the "
        "newest sidecar file of a node says. Not to be summed.",
        labels=SERIES_LABELS,
    )
    for number, said in facts.items():
        ratio = said.get("overhead_ratio")
        if index.catalog.series[number].job in jobs and isinstance(ratio, int | float) and 0 <= ratio <= 1:
            family.add_metric(series_values(index, number), ratio)
    return family
