"""Laws that must hold for every input: names, selection against a naive model, merging, the monotone budget."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.budget import GroupBudget, Series
from monitor.budgets import Changes, FunctionBudgets
from monitor.catalog import Catalog
from monitor.errors import LayoutError
from monitor.layout import SpanKey, format_path, locate
from monitor.rows import columns_of
from monitor.selection import ByStep, ByStepDocumented, ByTime, JobPhase
from monitor.spans import JOB_PHASES, Moment, PythonProfileModes, Span, StepPhase, format_span_name, parse_span_name
from monitor.store import Store, open_store
from monitor.sums import Sums, merge_sums
from monitor.tables import Measures

MODES = st.sampled_from(PythonProfileModes)
PHASES = st.sampled_from(StepPhase)
FEW_STEPS = st.one_of(st.none(), st.integers(0, 6))
MOMENTS = st.builds(
    Moment,
    mode=MODES,
    step=st.one_of(st.none(), st.integers(0, 2**63 - 2)),
    phase=PHASES,
    time_us=st.floats(0, 2.0**62, allow_nan=False),
)
NEAR_MOMENTS = st.builds(
    Moment,
    mode=st.sampled_from([PythonProfileModes.TRAIN, PythonProfileModes.EVAL]),
    step=FEW_STEPS,
    phase=PHASES,
    time_us=st.integers(0, 8).map(lambda second: second * 1e6),
)
SPANS = st.lists(st.builds(Span, name=st.just(""), start=NEAR_MOMENTS, end=NEAR_MOMENTS), max_size=12)
WORDS = st.text(st.characters(exclude_characters="/", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda word: word not in (".", "..") and word.isprintable()
)


@given(MOMENTS, MOMENTS)
def test_names_of_spans_come_back_exactly(start: Moment, end: Moment) -> None:
    name = format_span_name(start, end)
    span = parse_span_name(name)
    assert span == Span(name, start, end)
    assert format_span_name(span.start, span.end) == name


@given(WORDS, WORDS, st.sampled_from(["cprofile", "pyinstrument"]), MOMENTS, MOMENTS)
def test_paths_come_back_exactly(framework: str, node: str, profiler: str, start: Moment, end: Moment) -> None:
    key = SpanKey(framework=framework, profiler=profiler, node=node, span=format_span_name(start, end))
    path = format_path("/base", key)
    found = locate(path)
    assert found.key == key
    assert format_path("/base", found.key) == path


@given(st.text(max_size=200))
def test_any_other_name_is_refused(name: str) -> None:
    with contextlib.suppress(LayoutError):
        assert parse_span_name(name).name == name


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train-x-stepstart-1.0_train-1-stepend-2.0", "step 'x' in the start"),
        ("train-1-stepstart-1.0_train-²-stepend-2.0", "step '²' in the end"),
        ("trian-1-stepstart-1.0_train-1-stepend-2.0", "mode 'trian' in the start"),
        ("train-1-stepstart-1.0_train-1-stepstop-2.0", "phase 'stepstop' in the end"),
        ("train-1-stepstart-now_train-1-stepend-2.0", "time 'now' in the start"),
        ("train-1-stepstart-1.0", "does not have the form START_END"),
        ("train-1-stepstart_train-1-stepend-2.0", "the start of span"),
        ("train-99999999999999999999-stepstart-1.0_train-1-stepend-2.0", "is larger than"),
    ],
)
def test_a_refusal_names_the_part_that_is_wrong(name: str, part: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse_span_name(name)
    assert part in caught.value.reason


def by_step(span: Span, question: ByStep) -> bool:
    """The original's rule, written out for one span."""
    first, last = question.start_step, question.start_step if question.end_step is None else question.end_step
    if (span.start.mode, span.end.mode) != (question.mode, question.mode):
        return False
    if first < span.start_step and last > span.end_step:
        return True
    if first > span.start_step or last < span.end_step:
        return False
    named = (StepPhase.STEP_END, StepPhase.FORWARD_PASS_END)
    if first == span.start_step and question.start_phase in named and span.start.phase is not question.start_phase:
        return False
    wrong_end = question.end_phase is StepPhase.STEP_START and span.end.phase is not StepPhase.STEP_START
    return not (last == span.end_step and wrong_end)


def by_documented_step(span: Span, question: ByStepDocumented) -> bool:
    """The half-open rule, written out for one span."""
    to_start = question.end_phase is StepPhase.STEP_START
    last = (question.end_step if to_start else question.end_step - 1, question.end_phase.order)
    begins = (span.start_step, span.start.phase.order) >= (question.start_step, question.start_phase.order)
    return (
        begins
        and (span.end_step, span.end.phase.order) <= last
        and (span.start.mode, span.end.mode) == (question.mode, question.mode)
    )


@given(SPANS, st.integers(0, 7), st.one_of(st.none(), st.integers(0, 7)), PHASES, PHASES)
def test_steps_are_chosen_by_the_original_rule(
    spans: list[Span], first: int, last: int | None, start_phase: StepPhase, end_phase: StepPhase
) -> None:
    question = ByStep(start_step=first, end_step=last, start_phase=start_phase, end_phase=end_phase)
    assert question.mask(columns_of(spans)).tolist() == [by_step(span, question) for span in spans]


@given(SPANS, st.integers(0, 7), st.integers(0, 8), PHASES, PHASES)
def test_steps_are_chosen_by_the_documented_rule(
    spans: list[Span], first: int, last: int, start_phase: StepPhase, end_phase: StepPhase
) -> None:
    question = ByStepDocumented(start_step=first, end_step=last, start_phase=start_phase, end_phase=end_phase)
    assert question.mask(columns_of(spans)).tolist() == [by_documented_step(span, question) for span in spans]


@given(SPANS, st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_times_are_chosen_by_either_end_or_by_any_overlap(
    spans: list[Span], first: int, last: int, overlap: bool
) -> None:
    def chosen(span: Span) -> bool:
        start, end = span.start.time_us / 1e6, span.end.time_us / 1e6
        covers = overlap and start <= first and last <= end
        return first <= start <= last or first <= end <= last or covers

    question = ByTime(start=first, end=last, overlap="any" if overlap else "ends")
    assert question.mask(columns_of(spans)).tolist() == [chosen(span) for span in spans]


@given(SPANS)
def test_every_span_belongs_to_one_job_phase(spans: list[Span]) -> None:
    masks = [JobPhase(name=name).mask(columns_of(spans)) for name in JOB_PHASES]
    assert [JOB_PHASES[int(place)] for place in np.argmax(masks, axis=0)] == [span.job_phase for span in spans] or (
        not spans
    )
    assert sum(masks, np.zeros(len(spans), dtype=np.int64)).tolist() == [1] * len(spans)


Row = tuple[int, int, int, float, float]
ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 2**40), st.floats(0, 1e6), st.floats(0, 1e6)),
    max_size=40,
)


def measures(rows: list[Row]) -> Measures:
    return Measures(
        calls=np.array([row[1] for row in rows], dtype=np.int64),
        primitive_calls=np.array([row[2] for row in rows], dtype=np.int64),
        self_seconds=np.array([row[3] for row in rows], dtype=np.float64),
        cumulative_seconds=np.array([row[4] for row in rows], dtype=np.float64),
    )


def summed(parts: list[list[Row]]) -> Sums:
    sums = Sums()
    for rows in parts:
        sums.add(np.array([row[0] for row in rows], dtype=np.int32), measures(rows))
    return sums


def as_dict(part: tuple[npt.NDArray[np.int32], Measures]) -> dict[int, tuple[int, int, float, float]]:
    numbers, values = part
    columns = (values.calls, values.primitive_calls, values.self_seconds, values.cumulative_seconds)
    return dict(zip(numbers.tolist(), zip(*(column.tolist() for column in columns), strict=True), strict=True))


@given(ROWS, st.lists(st.integers(0, 40), max_size=4), st.randoms())
def test_merging_in_any_order_and_grouping_gives_the_same(rows: list[Row], cuts: list[int], chance: object) -> None:
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [rows[start:end] for start, end in pairwise(bounds)]
    whole = as_dict(summed([rows]).all())
    assert as_dict(summed(parts).all()) == whole  # the same order: the same bits, however it is cut
    chance.shuffle(parts)  # type: ignore[attr-defined]
    merged = as_dict(merge_sums([summed([part]).all() for part in parts]))
    assert merged.keys() == whole.keys()
    for number, values in merged.items():
        assert values[:2] == whole[number][:2]
        assert values[2:] == pytest.approx(whole[number][2:], rel=1e-9)


STEPS = st.lists(st.tuples(ROWS, st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_series_ever_falls_or_vanishes_and_the_sum_is_the_total(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[Row], int, bool, bool]]
) -> None:
    sums, budget, before = Sums(), GroupBudget(limit=2), None
    highest = 2
    with open_store(None) as store:
        for rows, limit, choose, restart in steps:
            sums.add(np.array([row[0] for row in rows], dtype=np.int32), measures(rows))
            if choose:
                budget = GroupBudget(
                    limit=limit, shown=budget.shown, floor=budget.floor, published=budget.published
                ).chosen(*sums.all())
                highest = max(highest, limit)
            if restart and budget.published:
                budget = reloaded(store, budget)
            if budget.published:
                after = budget.series(*sums.all())
                check_series(before, after, sums)
                assert len(after.shown) <= 2 * highest
                before = after


def check_series(before: Series | None, after: Series, sums: Sums) -> None:
    _, total = sums.all()
    everything = [*after.shown.values(), after.other]
    for name in ("calls", "primitive_calls"):
        assert sum(getattr(amount, name) for amount in everything) == getattr(total, name).sum()
    for name in ("self_seconds", "cumulative_seconds"):
        shown = math.fsum(getattr(amount, name) for amount in everything)
        assert shown == pytest.approx(math.fsum(getattr(total, name)), rel=1e-12, abs=1e-12)
    if before is None:
        return
    assert before.shown.keys() <= after.shown.keys()
    pairs = [(before.shown[label], after.shown[label]) for label in before.shown] + [(before.other, after.other)]
    for old, new in pairs:
        for name in ("calls", "primitive_calls", "self_seconds", "cumulative_seconds"):
            assert getattr(new, name) >= getattr(old, name)


def reloaded(store: Store, budget: GroupBudget) -> GroupBudget:
    """Save a budget of functions named by their numbers, and load it as after a restart."""
    before, after = (FunctionBudgets(Catalog(), limit=budget.limit) for _ in range(2))
    for number in range(10):
        assert [each.names.number(str(number)) for each in (before, after)] == [number + 1] * 2
    number_of = {label: before.names.number(str(label)) for label in budget.shown}
    named = {number_of[label]: state for label, state in budget.shown.items()}
    before.save(store, Changes(budgets={4: replace(budget, shown=named)}))
    after.load(store)
    loaded = after.of(4)
    return replace(loaded, shown={int(after.names.texts[name]): state for name, state in loaded.shown.items()})


def test_the_store_of_the_budget_is_exact() -> None:
    sums = summed([[(label, label, 1, 0.1 * label + 1e-17, 1 / 3) for label in range(9)]])
    budget = GroupBudget(limit=3).chosen(*sums.all())
    with open_store(None) as store:
        assert reloaded(store, budget) == budget
