"""Questions: each selects what a model asked span by span selects, and the documented rules hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.rows import columns_of
from monitor.selection import (
    BetweenModes,
    ByStep,
    ByStepDocumented,
    ByTime,
    Everything,
    JobPhase,
    PostHookClose,
    PreStepZero,
    Question,
    job_phase_numbers,
)
from monitor.spans import JOB_PHASES, JobPhaseName, Moment, PythonProfileModes, Span, StepPhase, parse_span_name

TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
START, STEP_START, FORWARD, STEP_END, END = StepPhase

MODES = st.sampled_from(PythonProfileModes)
PHASES = st.sampled_from(StepPhase)
STEPS = st.integers(-1, 6)
MOMENTS = st.builds(
    Moment,
    mode=st.sampled_from([TRAIN, TRAIN, TRAIN, EVAL, PythonProfileModes.PRE_STEP_ZERO]),
    step=st.none() | st.integers(0, 5),
    phase=PHASES,
    time_us=st.integers(0, 8).map(lambda second: second * 1e6),
)
SPANS = st.lists(st.builds(Span, name=st.just(""), start=MOMENTS, end=MOMENTS), max_size=40)


def chosen(question: Question, spans: Sequence[Span]) -> list[bool]:
    """Return which spans a question selects."""
    return [bool(mark) for mark in question.mask(columns_of(spans))]


def selected(question: Question, names: Sequence[str]) -> list[str]:
    """Return the names of those spans that a question selects."""
    marks = chosen(question, [parse_span_name(name) for name in names])
    return [name for name, mark in zip(names, marks, strict=True) if mark]


# -- the original's rule of steps ------------------------------------------------------------------------------------


def original_takes(span: Span, first: int, last: int, start_phase: StepPhase, end_phase: StepPhase) -> bool:
    """Ask one span the original's question, `in_step_interval`; `*` is -1 at the start and infinity at the end."""
    begins = -1 if span.start.step is None else span.start.step
    ends = math.inf if span.end.step is None else span.end.step
    if first < begins and last > ends:
        return True
    if first > begins or last < ends:
        return False
    if first == begins and start_phase in (STEP_END, FORWARD) and span.start.phase != start_phase:
        return False
    return not (last == ends and end_phase == STEP_START and span.end.phase != end_phase)


@given(SPANS, STEPS, st.none() | STEPS, MODES, PHASES, PHASES)
def test_steps_are_selected_as_the_original_selects_them(
    spans: list[Span],
    first: int,
    last: int | None,
    mode: PythonProfileModes,
    start_phase: StepPhase,
    end_phase: StepPhase,
) -> None:
    question = ByStep(start_step=first, end_step=last, mode=mode, start_phase=start_phase, end_phase=end_phase)
    until = first if last is None else last
    assert chosen(question, spans) == [
        span.start.mode is mode and span.end.mode is mode and original_takes(span, first, until, start_phase, end_phase)
        for span in spans
    ]


def step(number: int) -> list[str]:
    """Name the spans of one training step, as the Keras hook leaves them."""
    at = 1000 * number
    return [
        f"train-{number}-stepstart-{at}.0_train-{number}-forwardpassend-{at + 300}.0",
        f"train-{number}-forwardpassend-{at + 300}.0_train-{number}-stepend-{at + 600}.0",
        f"train-{number}-stepend-{at + 600}.0_train-{number + 1}-stepstart-{at + 1000}.0",
    ]


RUN = [name for number in range(5) for name in step(number)]
FORWARD_2, BACKWARD_2, BETWEEN_2_AND_3 = step(2)
FORWARD_3, BACKWARD_3, BETWEEN_3_AND_4 = step(3)


@pytest.mark.parametrize(
    ("question", "names"),
    [
        (ByStep(start_step=2), [FORWARD_2, BACKWARD_2]),
        (ByStep(start_step=2, end_step=3), [*step(2), FORWARD_3, BACKWARD_3]),
        (ByStep(start_step=2, end_step=3, end_phase=STEP_START), step(2)),
        # A span of the first step must start in this phase, not only after it.
        (ByStep(start_step=2, end_step=3, start_phase=FORWARD), [BACKWARD_2, FORWARD_3, BACKWARD_3]),
        (ByStep(start_step=2, end_step=3, start_phase=STEP_END), [BETWEEN_2_AND_3, FORWARD_3, BACKWARD_3]),
        # A start phase of STEP_START and an end phase of FORWARD_PASS_END are not looked at.
        (ByStep(start_step=2, end_phase=FORWARD), [FORWARD_2, BACKWARD_2]),
        (ByStep(start_step=3, end_step=2), []),
        (ByStep(start_step=2, mode=EVAL), []),
        (ByStep(start_step=99), []),
    ],
)
def test_both_border_steps_belong_to_the_original_interval(question: Question, names: list[str]) -> None:
    assert selected(question, RUN) == names


def test_a_span_to_the_end_of_the_script_lies_in_no_interval_of_steps() -> None:
    open_ended = "train-2-stepstart-1.0_train-*-end-2.0"
    assert selected(ByStep(start_step=0, end_step=2**62), [open_ended]) == []
    assert selected(ByStepDocumented(start_step=0, end_step=2**62), [open_ended]) == []


# -- the documented rule of steps ------------------------------------------------------------------------------------


def documented_takes(span: Span, first: int, end: int, start_phase: StepPhase, end_phase: StepPhase) -> bool:
    """Ask one span the documented question: moments are compared as pairs (step, phase)."""
    begins = (-1 if span.start.step is None else span.start.step, span.start.phase.order)
    ends = (math.inf if span.end.step is None else span.end.step, span.end.phase.order)
    until = end if end_phase is STEP_START else end - 1
    return (first, start_phase.order) <= begins and ends <= (until, end_phase.order)


@given(SPANS, STEPS, STEPS, MODES, PHASES, PHASES)
def test_the_documented_interval_is_half_open(
    spans: list[Span], first: int, end: int, mode: PythonProfileModes, start_phase: StepPhase, end_phase: StepPhase
) -> None:
    question = ByStepDocumented(start_step=first, end_step=end, mode=mode, start_phase=start_phase, end_phase=end_phase)
    assert chosen(question, spans) == [
        span.start.mode is mode and span.end.mode is mode and documented_takes(span, first, end, start_phase, end_phase)
        for span in spans
    ]


@pytest.mark.parametrize(
    ("question", "names"),
    [
        (ByStepDocumented(start_step=2, end_step=3), [FORWARD_2, BACKWARD_2]),
        (ByStepDocumented(start_step=2, end_step=4), [*step(2), FORWARD_3, BACKWARD_3]),
        (ByStepDocumented(start_step=2, end_step=3, end_phase=STEP_START), step(2)),
        (ByStepDocumented(start_step=2, end_step=3, end_phase=FORWARD), [FORWARD_2]),
        (ByStepDocumented(start_step=2, end_step=3, start_phase=FORWARD), [BACKWARD_2]),
        (
            ByStepDocumented(start_step=2, end_step=4, start_phase=STEP_END),
            [BETWEEN_2_AND_3, FORWARD_3, BACKWARD_3],
        ),
        (ByStepDocumented(start_step=2, end_step=2), []),
        (ByStepDocumented(start_step=3, end_step=2), []),
        (ByStepDocumented(start_step=2, end_step=3, mode=EVAL), []),
    ],
)
def test_the_end_step_does_not_belong_to_the_documented_interval(question: Question, names: list[str]) -> None:
    assert selected(question, RUN) == names


@given(st.lists(st.integers(0, 5), min_size=2, max_size=5).map(sorted))
def test_neighbouring_documented_intervals_share_no_span_and_lose_none(bounds: list[int]) -> None:
    parts = [
        selected(ByStepDocumented(start_step=first, end_step=end, end_phase=STEP_START), RUN)
        for first, end in pairwise(bounds)
    ]
    whole = selected(ByStepDocumented(start_step=bounds[0], end_step=bounds[-1], end_phase=STEP_START), RUN)
    assert [name for part in parts for name in part] == whole


# -- time, modes, phases ---------------------------------------------------------------------------------------------


@given(SPANS, st.integers(-1, 9), st.integers(-1, 9), st.booleans())
def test_times_are_selected_by_either_end_and_by_overlap_where_asked(
    spans: list[Span], first: int, last: int, overlap: bool
) -> None:
    def takes(span: Span) -> bool:
        begins, ends = span.start.time_us / 1e6, span.end.time_us / 1e6
        return first <= begins <= last or first <= ends <= last or (overlap and begins <= first and last <= ends)

    question = ByTime(start=first, end=last, overlap="any" if overlap else "ends")
    assert chosen(question, spans) == [takes(span) for span in spans]


@pytest.mark.parametrize(
    ("start", "end", "ends", "overlapping"),
    [
        (0.0, 1.9, False, False),
        (0.0, 2.0, True, True),
        (2.0, 2.0, True, True),
        (3.0, 4.0, False, True),
        (6.0, 6.0, True, True),
        (6.1, 9.0, False, False),
        (0.0, 9.0, True, True),
        (5.0, 3.0, False, True),
    ],
)
def test_a_span_that_covers_the_interval_is_taken_only_with_overlap(
    start: float, end: float, ends: bool, overlapping: bool
) -> None:
    spans = [parse_span_name("train-1-stepstart-2000000.0_train-1-stepend-6000000.0")]
    assert chosen(ByTime(start=start, end=end), spans) == [ends]
    assert chosen(ByTime(start=start, end=end, overlap="any"), spans) == [overlapping]


@given(SPANS, MODES, MODES)
def test_a_training_phase_is_a_pair_of_modes(
    spans: list[Span], start_mode: PythonProfileModes, end_mode: PythonProfileModes
) -> None:
    question = BetweenModes(start_mode=start_mode, end_mode=end_mode)
    assert chosen(question, spans) == [span.training_phase == (start_mode, end_mode) for span in spans]


@given(SPANS)
def test_before_step_zero_and_after_closing_are_told_by_phase(spans: list[Span]) -> None:
    assert chosen(PreStepZero(), spans) == [span.start.phase is START for span in spans]
    assert chosen(PostHookClose(), spans) == [span.end.phase is END for span in spans]


@given(SPANS)
def test_every_span_belongs_to_exactly_one_job_phase(spans: list[Span]) -> None:
    def phase(span: Span) -> JobPhaseName:
        if span.start.phase is START:
            return "initialization"
        return "finalization" if span.end.phase is END else "training_loop"

    for name in JOB_PHASES:
        assert chosen(JobPhase(name=name), spans) == [phase(span) == name for span in spans]
    assert [JOB_PHASES[number] for number in job_phase_numbers(columns_of(spans)).tolist()] == [
        span.job_phase for span in spans
    ]


@given(SPANS)
def test_everything_is_everything(spans: list[Span]) -> None:
    assert chosen(Everything(), spans) == [True] * len(spans)
