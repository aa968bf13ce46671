"""Which jobs have ended for Prometheus: their series go, what the daemon knows of them stays. Pure; time is passed in.

A job whose newest span on every node is the one that ends with the hook has closed, and its series end when nothing has
come for `keep_ended_seconds`. One that fell silent without closing hangs or was killed, which an alert has to see, so
it is kept for `keep_silent_seconds`. The time counts from when its newest profile was taken in, not from when that was
recorded: profiles of an old run are shown as long as those of a new one. When it was is kept in the store, with the
number of spans at that time, so that a restart does not bring back what has ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from monitor.index import Index
from monitor.spans import JOB_PHASES

META_KEY = "arrivals"
FINALIZATION = JOB_PHASES[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When a job's newest profile was taken in (seconds since the epoch), and how many spans there were then."""

    spans: int
    seconds: float


class Endings:
    """Tells which jobs have ended.

    Args:
        keep_ended_seconds, keep_silent_seconds: 0 keeps series for ever; both may be changed at any time.
        arrivals: what a daemon before this one had noted.
    """

    def __init__(
        self,
        *,
        keep_ended_seconds: float = 0.0,
        keep_silent_seconds: float = 0.0,
        arrivals: Mapping[str, Arrival] | None = None,
    ) -> None:
        self.keep_ended_seconds = keep_ended_seconds
        self.keep_silent_seconds = keep_silent_seconds
        self._arrivals = dict(arrivals or {})
        self._closed: frozenset[str] = frozenset()
        self._generation = -1

    def ended(self, index: Index, now_seconds: float) -> frozenset[str]:
        """Return the jobs whose series have ended by now."""
        self._note(index, now_seconds)
        return frozenset(
            job for job, arrival in self._arrivals.items() if now_seconds - arrival.seconds >= self._kept_seconds(job)
        )

    def dumped(self) -> str:
        """Return when what came, for the store."""
        return json.dumps({job: [arrival.spans, arrival.seconds] for job, arrival in self._arrivals.items()})

    def _kept_seconds(self, job: str) -> float:
        kept = self.keep_ended_seconds if job in self._closed else self.keep_silent_seconds
        return kept or math.inf

    def _note(self, index: Index, now_seconds: float) -> None:
        if index.generation == self._generation:
            return
        self._generation = index.generation
        for job, spans in index.spans_by_job().items():
            known = self._arrivals.get(job)
            if known is None or known.spans != spans:
                self._arrivals[job] = Arrival(spans=spans, seconds=now_seconds)
        self._closed = closed_jobs(index)


def loaded(text: str | None) -> dict[str, Arrival]:
    """Read what `dumped` gave; nothing where a store has none."""
    return {job: Arrival(spans=spans, seconds=seconds) for job, (spans, seconds) in json.loads(text or "{}").items()}


def closed_jobs(index: Index) -> frozenset[str]:
    """Return the jobs of which every node's newest span is one that ends with the hook."""
    closed = {
        group.series
        for group in index.groups
        if group.key.job_phase == FINALIZATION and group.last_us >= index.last_end_us[group.series]
    }
    names = index.catalog.series
    open_jobs = {names[series].job for series in index.last_end_us if series not in closed}
    return frozenset(names[series].job for series in closed) - open_jobs
