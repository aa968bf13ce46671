"""Which spans a question selects: the original library's rules, vectorised. Pure; knows nothing of nodes or jobs.

The rules of `ByStep` and `ByTime` are those of smdebug 1.0.34 (`in_step_interval`, `in_time_interval`), which is the
judge; `ByStepDocumented` is the rule of its published documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from monitor.spans import JOB_PHASES, JobPhaseName, PythonProfileModes, StepPhase

Mask: TypeAlias = npt.NDArray[np.bool_]

NO_END_STEP = int(np.iinfo(np.int64).max)
"""In `end_step`: the name has `*` there, which is after every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanColumns:
    """What span names say, as columns of equal length.

    Attributes:
        start_mode, end_mode: numbers of `PythonProfileModes`.
        start_phase, end_phase: `StepPhase.order`.
        start_step, end_step: -1 is `*` at the start, NO_END_STEP is `*` at the end.
        start_us, end_us: microseconds since the epoch.
    """

    start_mode: npt.NDArray[np.int8]
    end_mode: npt.NDArray[np.int8]
    start_phase: npt.NDArray[np.int8]
    end_phase: npt.NDArray[np.int8]
    start_step: npt.NDArray[np.int64]
    end_step: npt.NDArray[np.int64]
    start_us: npt.NDArray[np.float64]
    end_us: npt.NDArray[np.float64]

    def between(self, start_mode: int, end_mode: int) -> Mask:
        """Mark the spans that start in one mode and end in the other."""
        return marks((self.start_mode == start_mode) & (self.end_mode == end_mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByStep:
    """Steps from `start_step` to `end_step`, both included, by the original's rule.

    Phases matter only at the border steps, and only those that the original names: a start phase of FORWARD_PASS_END
    or STEP_END, an end phase of STEP_START.
    """

    start_step: int
    end_step: int | None = None
    mode: PythonProfileModes = PythonProfileModes.TRAIN
    start_phase: StepPhase = StepPhase.STEP_START
    end_phase: StepPhase = StepPhase.STEP_END

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        last = self.start_step if self.end_step is None else self.end_step
        inside = in_step_interval(spans, self.start_step, last, self.start_phase, self.end_phase)
        return marks(inside & spans.between(self.mode, self.mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByStepDocumented:
    """Steps in the half-open interval [start_step, end_step), as documented.

    A span counts if it begins at or after `start_phase` of `start_step` and ends no later than `end_phase` of step
    `end_step - 1`; with an `end_phase` of STEP_START, no later than the start of step `end_step`.
    """

    start_step: int
    end_step: int
    mode: PythonProfileModes = PythonProfileModes.TRAIN
    start_phase: StepPhase = StepPhase.STEP_START
    end_phase: StepPhase = StepPhase.STEP_END

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        to_start = self.end_phase is StepPhase.STEP_START
        last = self.end_step if to_start else self.end_step - 1
        begins = (spans.start_step > self.start_step) | (
            (spans.start_step == self.start_step) & (spans.start_phase >= self.start_phase.order)
        )
        ends = (spans.end_step < last) | ((spans.end_step == last) & (spans.end_phase <= self.end_phase.order))
        return marks(begins & ends & spans.between(self.mode, self.mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTime:
    """A span's start or end lies in [start, end], seconds since the epoch.

    Attributes:
        overlap: "any" also takes spans that cover the whole interval, which the original misses.
    """

    start: float
    end: float
    overlap: Literal["ends", "any"] = "ends"

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        first, last = self.start * 1e6, self.end * 1e6
        chosen = (first <= spans.start_us) & (spans.start_us <= last) | (first <= spans.end_us) & (spans.end_us <= last)
        if self.overlap == "any":
            chosen |= (spans.start_us <= first) & (last <= spans.end_us)
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenModes:
    """Spans of one training phase."""

    start_mode: PythonProfileModes
    end_mode: PythonProfileModes

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        return spans.between(self.start_mode, self.end_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStepZero:
    """Spans that start in phase START: from the import of the capture to the first step."""

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        return marks(spans.start_phase == StepPhase.START.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostHookClose:
    """Spans that end in phase END: the last one of the loop, and the one after the capture was closed."""

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        return marks(spans.end_phase == StepPhase.END.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPhase:
    """Spans of one job phase, by `job_phase_numbers`."""

    name: JobPhaseName

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        return marks(job_phase_numbers(spans) == JOB_PHASES.index(self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """All spans."""

    def mask(self, spans: SpanColumns) -> Mask:
        """Mark the spans that are meant."""
        return np.ones(len(spans.start_mode), dtype=np.bool_)


Question: TypeAlias = (
    ByStep | ByStepDocumented | ByTime | BetweenModes | PreStepZero | PostHookClose | JobPhase | Everything
)


def in_step_interval(spans: SpanColumns, first: int, last: int, start_phase: StepPhase, end_phase: StepPhase) -> Mask:
    """Mark the spans that the original's `in_step_interval` takes, whatever their modes."""
    strictly_inside = (first < spans.start_step) & (last > spans.end_step)
    inside = (first <= spans.start_step) & (last >= spans.end_step)
    refused = np.zeros(len(inside), dtype=np.bool_)
    if start_phase in (StepPhase.STEP_END, StepPhase.FORWARD_PASS_END):
        refused |= (spans.start_step == first) & (spans.start_phase != start_phase.order)
    if end_phase is StepPhase.STEP_START:
        refused |= (spans.end_step == last) & (spans.end_phase != end_phase.order)
    return marks(strictly_inside | (inside & ~refused))


def marks(values: npt.ArrayLike) -> Mask:
    """Take the result of comparisons for what it is, which numpy's types do not tell."""
    return np.asarray(values, dtype=np.bool_)


def job_phase_numbers(spans: SpanColumns) -> npt.NDArray[np.int8]:
    """Number each span's job phase by its place in JOB_PHASES: starts in START, else ends in END, else the loop."""
    finalization = spans.end_phase == StepPhase.END.order
    numbers = np.where(finalization, JOB_PHASES.index("finalization"), JOB_PHASES.index("training_loop"))
    initialization = spans.start_phase == StepPhase.START.order
    return np.where(initialization, JOB_PHASES.index("initialization"), numbers).astype(np.int8)
