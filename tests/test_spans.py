"""Names of span folders: what they say, that they come back exactly, and what is said of one that is wrong."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import LayoutError
from monitor.spans import (
    LARGEST_STEP,
    LARGEST_TIME_US,
    JobPhaseName,
    Moment,
    PythonProfileModes,
    Span,
    StepPhase,
    format_span_name,
    parse_any_name,
    parse_legacy_name,
    parse_span_name,
)

TRAIN, EVAL, PRE_STEP_ZERO, POST_HOOK_CLOSE = (
    PythonProfileModes.TRAIN,
    PythonProfileModes.EVAL,
    PythonProfileModes.PRE_STEP_ZERO,
    PythonProfileModes.POST_HOOK_CLOSE,
)
GOOD = "train-1-stepstart-1.0"
TIMES = st.floats(0, LARGEST_TIME_US, allow_nan=False)
MOMENTS = st.builds(
    Moment,
    mode=st.sampled_from(PythonProfileModes),
    step=st.none() | st.integers(0, LARGEST_STEP),
    phase=st.sampled_from(StepPhase),
    time_us=TIMES,
)


def refusal(name: str) -> str:
    """Return why a name is refused."""
    with pytest.raises(LayoutError) as caught:
        parse_span_name(name)
    return caught.value.reason


def legacy_refusal(name: str) -> str:
    """Return why a name of the older layout is refused."""
    with pytest.raises(LayoutError) as caught:
        parse_legacy_name(name)
    return caught.value.reason


# -- what a name says ------------------------------------------------------------------------------------------------


@given(MOMENTS, MOMENTS)
def test_a_name_that_was_written_comes_back_exactly(start: Moment, end: Moment) -> None:
    name = format_span_name(start, end)
    assert parse_span_name(name) == Span(name, start, end)
    assert parse_any_name(name) == Span(name, start, end)


def test_a_real_name_is_read() -> None:
    name = "train-10-stepstart-1796116656916859.8_train-10-forwardpassend-1796116656919192.8"
    assert parse_span_name(name) == Span(
        name,
        Moment(TRAIN, 10, StepPhase.STEP_START, 1796116656916859.8),
        Moment(TRAIN, 10, StepPhase.FORWARD_PASS_END, 1796116656919192.8),
    )


def test_a_star_is_before_every_step_at_the_start_and_after_every_step_at_the_end() -> None:
    span = parse_span_name("prestepzero-*-start-1.0_posthookclose-*-end-2.0")
    assert (span.start.step, span.start_step) == (None, -1)
    assert (span.end.step, span.end_step) == (None, math.inf)
    assert span.training_phase == (PRE_STEP_ZERO, POST_HOOK_CLOSE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("7", 7.0),
        ("7.", 7.0),
        ("007.50", 7.5),
        ("1.796116656916859e15", 1796116656916859.0),
        ("1.796116656916859E+15", 1796116656916859.0),
        ("1e-05", 0.00001),
        ("5e-324", 5e-324),
        ("1e-999", 0.0),
        ("4611686018427387904", 2.0**62),
    ],
)
def test_a_time_may_be_written_in_every_way_that_python_writes_numbers(text: str, value: float) -> None:
    name = f"train-1-stepstart-{text}_train-2-stepend-{text}"
    span = parse_span_name(name)
    assert (span.start.time_us, span.end.time_us, span.name) == (value, value, name)


def test_a_small_time_is_written_with_an_exponent_and_read_again() -> None:
    moment = Moment(TRAIN, 0, StepPhase.START, 1e-07)
    name = format_span_name(moment, moment)
    assert name == "train-0-start-1e-07_train-0-start-1e-07"
    assert parse_span_name(name).start == moment


def test_a_clock_that_jumps_back_is_no_fault_of_the_name() -> None:
    span = parse_span_name("train-1-stepstart-9.0_train-1-stepend-2.0")
    assert span.start.time_us > span.end.time_us


def test_the_largest_step_is_read() -> None:
    assert parse_span_name(f"train-{LARGEST_STEP}-stepstart-1.0_{GOOD}").start_step == 2**63 - 2


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("prestepzero-*-start-1.0_train-0-stepstart-2.0", "initialization"),
        ("train-0-start-1.0_train-0-end-2.0", "initialization"),
        ("train-0-stepstart-1.0_train-0-stepend-2.0", "training_loop"),
        ("eval-0-stepend-1.0_train-9-stepstart-2.0", "training_loop"),
        ("train-9-stepstart-1.0_posthookclose-*-end-2.0", "finalization"),
        ("prestepzero-*-stepend-1.0_posthookclose-*-end-2.0", "finalization"),
        ("prestepzero-*-stepend-1.0_posthookclose-*-stepend-2.0", "training_loop"),
    ],
)
def test_the_job_phase_follows_from_the_step_phases_not_from_the_modes(name: str, phase: JobPhaseName) -> None:
    assert parse_span_name(name).job_phase == phase


def test_modes_have_their_words_and_the_numbers_of_the_original() -> None:
    assert [(mode.word, mode.value) for mode in PythonProfileModes] == [
        ("train", 1),
        ("eval", 2),
        ("predict", 3),
        ("global", 4),
        ("prestepzero", 5),
        ("posthookclose", 6),
    ]
    assert [PythonProfileModes.from_word(mode.word) for mode in PythonProfileModes] == list(PythonProfileModes)


def test_a_word_that_is_no_mode_is_refused_with_those_that_are() -> None:
    with pytest.raises(LayoutError) as caught:
        PythonProfileModes.from_word("TRAIN")
    assert caught.value.reason == ("mode 'TRAIN' is none of train, eval, predict, global, prestepzero, posthookclose")


def test_phases_are_ordered_as_they_pass() -> None:
    phases = list(StepPhase)
    assert [phase.value for phase in phases] == ["start", "stepstart", "forwardpassend", "stepend", "end"]
    assert sorted(set(phases)) == phases
    for earlier, later in pairwise(phases):
        assert earlier < later
        assert earlier <= later
        assert later > earlier
        assert later >= earlier
        assert not later <= earlier
        assert not earlier >= later


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["start", "end"])
@pytest.mark.parametrize(
    ("moment", "said"),
    [
        ("trian-1-stepstart-1.0", "mode 'trian' in the {which} of span {name} is none of train, eval, "),
        ("TRAIN-1-stepstart-1.0", "mode 'TRAIN' in the {which} of span {name} is none of train, "),
        ("-1-stepstart-1.0", "mode '' in the {which} of span {name} is none of train, "),
        ("train-x-stepstart-1.0", "step 'x' in the {which} of span {name} is neither digits nor *"),
        ("train--stepstart-1.0", "step '' in the {which} of span {name} is neither digits nor *"),
        ("train-1.5-stepstart-1.0", "step '1.5' in the {which} of span {name} is neither digits nor *"),
        ("train-**-stepstart-1.0", "step '**' in the {which} of span {name} is neither digits nor *"),
        ("train-²-stepstart-1.0", "step '²' in the {which} of span {name} is neither digits nor *"),
        ("train-٣-stepstart-1.0", "step '٣' in the {which} of span {name} is neither digits nor *"),
        ("train-１-stepstart-1.0", "step '１' in the {which} of span {name} is neither digits nor *"),
        (
            "train-9223372036854775807-stepstart-1.0",
            "step '9223372036854775807' in the {which} of span {name} is larger than 9223372036854775806",
        ),
        ("train-1-stepstop-1.0", "phase 'stepstop' in the {which} of span {name} is none of start, stepstart, "),
        ("train-1-StepStart-1.0", "phase 'StepStart' in the {which} of span {name} is none of start, "),
        ("train-1-stepstart-now", "time 'now' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-", "time '' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart--1.0", "time '-1.0' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-.5", "time '.5' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-1e", "time '1e' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-nan", "time 'nan' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-inf", "time 'inf' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-1e999", "time '1e999' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-1٢.0", "time '1٢.0' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart- 1.0", "time ' 1.0' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart-1.0\n", r"time '1.0\n' in the {which} of span {name} is not a number of microseconds"),
        ("train-1-stepstart", "the {which} of span {name} does not have the form MODE-STEP-PHASE-TIME"),
        ("train", "the {which} of span {name} does not have the form MODE-STEP-PHASE-TIME"),
        ("", "the {which} of span {name} does not have the form MODE-STEP-PHASE-TIME"),
    ],
)
def test_a_refusal_says_which_part_of_which_end_is_wrong(which: str, moment: str, said: str) -> None:
    name = f"{moment}_{GOOD}" if which == "start" else f"{GOOD}_{moment}"
    assert refusal(name).startswith(said.format(which=which, name=repr(name)))


@pytest.mark.parametrize("name", ["", GOOD, f"{GOOD}_{GOOD}_{GOOD}", "tmp", ".snapshot"])
def test_a_name_that_is_no_pair_is_refused_as_such(name: str) -> None:
    assert refusal(name) == f"span name {name!r} does not have the form START_END"


@pytest.mark.parametrize(
    "name",
    [
        "x" * 10_000,
        f"{'x' * 10_000}-1-stepstart-1.0_{GOOD}",
        f"train-{'9' * 10_000}-stepstart-1.0_{GOOD}",
        f"{GOOD}_train-1-{'p' * 10_000}-1.0",
        f"{GOOD}_train-1-stepend-{'1' * 10_000}",
        f"{GOOD}_train-1-stepend-1{'-' * 10_000}",
        "_" * 10_000,
    ],
)
def test_a_name_of_ten_thousand_characters_is_refused_in_a_short_sentence(name: str) -> None:
    reason = refusal(name)
    assert len(reason) < 500
    assert "…" in reason


def test_a_long_name_that_is_well_formed_is_read() -> None:
    name = f"train-1-stepstart-1.{'0' * 10_000}_{GOOD}"
    assert parse_span_name(name) == Span(
        name, Moment(TRAIN, 1, StepPhase.STEP_START, 1.0), Moment(TRAIN, 1, StepPhase.STEP_START, 1.0)
    )


@given(st.text(max_size=60) | st.text("train-0*stepd1._e", max_size=60))
def test_any_text_is_either_read_under_its_own_name_or_refused(name: str) -> None:
    try:
        span = parse_any_name(name)
    except LayoutError as error:
        assert error.reason  # noqa: PT017 - either outcome is right
    else:
        assert span.name == name


# -- the older layout ------------------------------------------------------------------------------------------------


@given(
    TIMES,
    TIMES,
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1),
    st.integers(-1, LARGEST_STEP),
)
def test_a_name_of_the_older_layout_comes_back_exactly(start: float, end: float, node: str, step: int) -> None:
    name = f"{start!r}_{end!r}_{node}_{step}"
    span, whose = parse_legacy_name(name)
    assert (span.name, whose, span.start.time_us, span.end.time_us) == (name, node, start, end)
    assert span.start_step == step
    assert parse_any_name(name) == span


def test_step_minus_one_of_the_older_layout_is_before_step_zero() -> None:
    span, node = parse_legacy_name("1596668400000000.5_1596668500000000.0_0-algo_1_-1")
    assert node == "0-algo_1"
    assert span.start == Moment(PRE_STEP_ZERO, None, StepPhase.START, 1596668400000000.5)
    assert span.end == Moment(TRAIN, 0, StepPhase.STEP_START, 1596668500000000.0)
    assert span.job_phase == "initialization"


def test_any_other_step_of_the_older_layout_is_one_whole_training_step() -> None:
    span, node = parse_legacy_name("1_2e3_0-algo-1_7")
    assert node == "0-algo-1"
    assert span.start == Moment(TRAIN, 7, StepPhase.STEP_START, 1.0)
    assert span.end == Moment(TRAIN, 7, StepPhase.STEP_END, 2000.0)
    assert span.job_phase == "training_loop"


@pytest.mark.parametrize(
    "name",
    [
        "1_2_node",
        "1_2__3",
        "1_2_node_-2",
        "1_2_node_x",
        "1_2_node_²",
        "1_2_node_",
        "١_2_node_3",
        "1_²_node_3",
        "_2_n_3",
    ],
)
def test_a_name_that_does_not_follow_the_older_layout_is_refused_as_such(name: str) -> None:
    assert legacy_refusal(name) == f"folder name {name!r} is not START_END_NODE_STEP of the older layout"


@pytest.mark.parametrize("name", [f"1_2_node_{2**63 - 1}", "1e999_2_node_3", "1_4e19_node_3", f"1_2_n_{'9' * 5000}"])
def test_a_number_of_the_older_layout_that_is_too_large_is_refused(name: str) -> None:
    reason = legacy_refusal(name)
    assert reason.startswith("a time or the step in '")
    assert reason.endswith("of the older layout is out of range")
    assert len(reason) < 250


@pytest.mark.parametrize("name", ["²-1-stepstart-1.0_train-1-stepend-2.0", "١_2_node_3"])
def test_digits_that_are_not_ascii_make_neither_layout(name: str) -> None:
    with pytest.raises(LayoutError):
        parse_any_name(name)
