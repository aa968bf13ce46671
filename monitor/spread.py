"""How far the steps of a job's nodes differ of late: the slowest node's mean step over the median node's. Pure.

Recent are a node's last spans of the training loop. A node whose training has ended, or that has not been heard of for
long by the clocks of the others, is no straggler and takes no part.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from statistics import median

from monitor.catalog import SeriesKey
from monitor.selection import SpanColumns
from monitor.spans import PythonProfileModes, StepPhase

RECENT_SPANS = 300
"""A hundred steps of three spans each."""
SILENT_SECONDS = 600.0

JobKey = tuple[str, str, str]
"""Job, framework and profiler: nodes are compared with their like."""


class RecentSteps:
    """The last training spans of each node, by series number: length in seconds, and whether a step begins there."""

    def __init__(self) -> None:
        self._spans: dict[int, deque[tuple[float, bool]]] = defaultdict(lambda: deque(maxlen=RECENT_SPANS))

    def add(self, series: Iterable[int], said: SpanColumns, seconds: Iterable[float]) -> None:
        """Take spans in the order in which they came."""
        first, last = StepPhase.START.order, StepPhase.END.order
        columns = (said.start_mode.tolist(), said.start_phase.tolist(), said.end_phase.tolist())
        for number, mode, start, end, length in zip(series, *columns, seconds, strict=True):
            if end == last:
                self._spans.pop(number, None)
            elif mode == PythonProfileModes.TRAIN and start != first:
                self._spans[number].append((length, start == StepPhase.STEP_START.order))

    def step_seconds(self, series: int) -> float | None:
        """Return the mean length of a node's recent steps; None where there is none."""
        spans = self._spans.get(series, ())
        steps = sum(begins for _, begins in spans)
        return sum(length for length, _ in spans) / steps if steps else None


def spreads(recent: RecentSteps, keys: Iterable[tuple[int, SeriesKey, float]]) -> Iterator[tuple[JobKey, float]]:
    """Compare the nodes of each job that has two or more at work.

    Args:
        keys: series with their numbers, and when their newest span ended, in microseconds.
    """
    jobs: dict[JobKey, list[tuple[float, float]]] = defaultdict(list)
    for number, key, end_us in keys:
        seconds = recent.step_seconds(number)
        if seconds is not None:
            jobs[key.job, key.framework, key.profiler].append((end_us, seconds))
    for job, nodes in jobs.items():
        newest = max(end_us for end_us, _ in nodes)
        steps = [seconds for end_us, seconds in nodes if newest - end_us <= SILENT_SECONDS * 1e6]
        middle = median(steps)
        if len(steps) > 1 and middle > 0:
            yield job, max(steps) / middle
