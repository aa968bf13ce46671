"""The families about steps: how many were profiled, how long which part of them took, the last one, how far nodes
differ. Reads the index; counters are drawn from its histograms of span lengths, so there is nothing to keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from monitor.index import Index
from monitor.spans import PythonProfileModes, StepPhase
from monitor.spread import spreads

JOB_LABEL = "training_job"
JOB_LABELS = (JOB_LABEL, "framework", "profiler")
SERIES_LABELS = (JOB_LABEL, "node", "framework", "profiler")

START, STEP_START, FORWARD_END, STEP_END, END = (phase.order for phase in StepPhase)

PARTS = {
    (STEP_START, FORWARD_END): "forward",
    (FORWARD_END, STEP_END): "backward",
    (STEP_END, STEP_START): "data_loading",
    (FORWARD_END, STEP_START): "backward_and_data_loading",
    (STEP_START, STEP_END): "step",
    (STEP_START, STEP_START): "step_and_data_loading",
}
"""By the phases in which a span starts and ends. Which of them there are depends on what the writer marks."""
MIXED = "mixed"

Mode = tuple[int, int]
"""Series number and mode."""


def step_families(index: Index, jobs: Set[str]) -> Iterator[Metric]:
    """Return the families, with the samples of some jobs."""
    steps, seconds = step_totals(index, jobs)
    counted = CounterMetricFamily(
        "phasewatch_steps",
        "Steps that were profiled from their start on, by mode. May be summed over modes and nodes.",
        labels=[*SERIES_LABELS, "mode"],
    )
    for (series, mode), count in steps.items():
        counted.add_metric([*series_values(index, series), word_of(mode)], count)
    yield counted
    parts = CounterMetricFamily(
        "phasewatch_step_part_seconds",
        "Profiled seconds of the training loop, by the mode in which a span starts and the part of a step that it is. "
        "May be summed over parts, modes and nodes.",
        labels=[*SERIES_LABELS, "mode", "part"],
    )
    for (series, mode, part), total in seconds.items():
        parts.add_metric([*series_values(index, series), word_of(mode), part], total)
    yield parts
    yield last_step_family(index, jobs)
    yield spread_family(index, jobs)


def last_step_family(index: Index, jobs: Set[str]) -> Metric:
    """Tell how far nodes have come."""
    family = GaugeMetricFamily(
        "phasewatch_last_step",
        "The highest step profiled so far, by mode; never falls. Not to be summed.",
        labels=[*SERIES_LABELS, "mode"],
    )
    for (series, mode), step in index.last_step.items():
        if index.catalog.series[series].job in jobs:
            family.add_metric([*series_values(index, series), word_of(mode)], step)
    return family


def step_totals(index: Index, jobs: Set[str]) -> tuple[dict[Mode, int], dict[tuple[int, int, str], float]]:
    """Count steps and add up the seconds of their parts; what lies before the first step or after the last is neither.

    Where a mode is known, so is its number of steps, be it 0.
    """
    steps: dict[Mode, int] = defaultdict(int)
    seconds: dict[tuple[int, int, str], float] = defaultdict(float)
    for (series, mode, start, end), histogram in index.span_seconds.items():
        if start == START or end == END or index.catalog.series[series].job not in jobs:
            continue
        steps[series, mode] += histogram.count if start == STEP_START else 0
        seconds[series, mode, PARTS.get((start, end), MIXED)] += histogram.sum
    return steps, seconds


def spread_family(index: Index, jobs: Set[str]) -> Metric:
    """Return how far nodes differ."""
    family = GaugeMetricFamily(
        "phasewatch_step_spread_ratio",
        "Mean of the slowest node's last training steps over the median node's, of the nodes at work; 1 where all are "
        "alike. Not to be summed.",
        labels=JOB_LABELS,
    )
    keys = ((number, index.catalog.series[number], end_us) for number, end_us in index.last_end_us.items())
    for job, ratio in spreads(index.recent_steps, (key for key in keys if key[1].job in jobs)):
        family.add_metric(job, ratio)
    return family


def series_values(index: Index, number: int) -> list[str]:
    """Return the values of SERIES_LABELS."""
    key = index.catalog.series[number]
    return [key.job, key.node, key.framework, key.profiler]


def word_of(mode: int) -> str:
    """Return a mode's word."""
    return PythonProfileModes(mode).word
