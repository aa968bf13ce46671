"""Which nodes' clocks are wrong, told from when they start the same steps. Pure.

Nodes that train together wait for each other in every step, so at equal steps none is ahead of the others by more than
about one step. A node that differs by more, and by the same amount at all steps, has another clock; one that differs by
more and more has other work. What belongs to a node (`NODE-worker-3`) runs ahead of it, under the same clock, and is
not compared. And no span can end in the future.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

FEWEST_MOMENTS = 5
LEAST_SECONDS = 1.0
MOST_STEPS = 2.0
"""A difference of less than so many steps may be the work's."""
STEADY_SHARE = 0.25
"""The middle half of a clock's differences lies within this share of their median on each side."""
FUTURE_SECONDS = 5.0


class Seen(NamedTuple):
    """One span: who wrote it, the moment at which it starts, and its times in seconds since the epoch."""

    job: str
    node: str
    mode: str
    phase: str
    step: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """One node's clock.

    Attributes:
        seconds: ahead of the other nodes, or of this machine where there are `moments` 0.
    """

    job: str
    node: str
    seconds: float
    moments: int


def find_skews(spans: Iterable[Seen], now: float) -> list[Skew]:
    """Return the clocks that are wrong.

    Args:
        now: seconds since the epoch, by this machine's clock.
    """
    jobs: defaultdict[str, list[Seen]] = defaultdict(list)
    for span in spans:
        jobs[span.job].append(span)
    return [skew for job, seen in sorted(jobs.items()) for skew in (*ahead_of_now(job, seen, now), *apart(job, seen))]


def ahead_of_now(job: str, spans: Iterable[Seen], now: float) -> Iterator[Skew]:
    """Give the nodes whose spans end in the future."""
    newest: dict[str, float] = {}
    for span in spans:
        newest[span.node] = max(newest.get(span.node, span.end), span.end)
    for node, end in sorted(newest.items()):
        if end > now + FUTURE_SECONDS:
            yield Skew(job=job, node=node, seconds=end - now, moments=0)


def apart(job: str, spans: Iterable[Seen]) -> Iterator[Skew]:
    """Give the nodes that differ steadily from the others at equal steps."""
    seen = list(spans)
    names = {span.node for span in seen}
    own = {name for name in names if not any(name.startswith(f"{other}-") for other in names)}
    moments: defaultdict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    for span in seen:
        if span.node in own:
            moments[span.mode, span.phase, span.step][span.node] = span.start
    differences: defaultdict[str, list[float]] = defaultdict(list)
    for starts in moments.values():
        for node, start in starts.items():
            if len(starts) > 1:
                others = [other for name, other in starts.items() if len(starts) > 2 or name != node]
                differences[node].append(start - median(others))
    least = max(LEAST_SECONDS, MOST_STEPS * step_seconds(moments))
    for node, values in sorted(differences.items()):
        ordered, middle = sorted(values), median(values)
        quarter = len(ordered) // 4
        spread = max(middle - ordered[quarter], ordered[-1 - quarter] - middle)
        if len(values) >= FEWEST_MOMENTS and abs(middle) > least and spread <= STEADY_SHARE * abs(middle):
            yield Skew(job=job, node=node, seconds=middle, moments=len(values))


def step_seconds(moments: Mapping[tuple[str, str, int], Mapping[str, float]]) -> float:
    """Return the usual time from one step to the next one seen on the same node; 0 where there are no two."""
    lines: defaultdict[tuple[str, str, str], list[tuple[int, float]]] = defaultdict(list)
    for (mode, phase, step), starts in moments.items():
        for node, start in starts.items():
            lines[mode, phase, node].append((step, start))
    lengths = [
        (after[1] - before[1]) / (after[0] - before[0])
        for line in lines.values()
        for before, after in pairwise(sorted(line))
    ]
    return max(0.0, median(lengths)) if lengths else 0.0
