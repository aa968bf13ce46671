"""The index: which spans there are, and running totals that do not depend on how spans came in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.catalog import Catalog, SeriesKey
from monitor.histogram import BOUNDS_SECONDS
from monitor.index import Group, GroupKey, Index, runs_of
from monitor.profiles.builder import BatchBuilder
from monitor.profiles.columns import NO_CALLER, NO_PARENT, DecodedBatch, FunctionName
from monitor.profiles.finish import arrays, finish
from monitor.rows import ProfileRows, SpanRows, columns_of, profile_rows
from monitor.spans import PythonProfileModes, StepPhase, parse_span_name

A, B, C = ("/app/a.py", 1, "a"), ("/app/b.py", 2, "b"), ("~", 0, "<built-in method c>")
NODE_0, NODE_1 = (
    SeriesKey(job="training", framework="pytorch", profiler="cprofile", node=f"{rank}-host") for rank in (0, 1)
)
SAMPLED = SeriesKey(job="training", framework="pytorch", profiler="pyinstrument", node="0-host")

Row = tuple[FunctionName, FunctionName | None, int, int, float, float]
"""Function, caller (None: the function's own row), calls, primitive calls, self seconds, cumulative seconds."""


class Recorded(NamedTuple):
    """One span and what its file holds."""

    series: SeriesKey
    name: str
    rows: Sequence[Row] = ()
    samples: Sequence[tuple[tuple[FunctionName, ...], float]] = ()


def batch_of(spans: Sequence[Recorded]) -> DecodedBatch:
    """Build the batch that decoding the files of these spans gives."""
    builder = BatchBuilder()
    for span in spans:
        for function, caller, calls, primitive, own, total in span.rows:
            above = NO_CALLER if caller is None else builder.number(caller)
            builder.add_rows([builder.number(function)], [above], [calls], [primitive], [own], [total])
        for path, seconds in span.samples:
            number = NO_PARENT
            for function in path:
                number = builder.path(number, builder.number(function))
            builder.add_samples([number], [seconds])
        builder.end_file()
    return finish(arrays(builder.build()))


def numbered(catalog: Catalog, spans: Sequence[Recorded], first: int) -> tuple[SpanRows, ProfileRows]:
    """Number spans and what they hold, as the storing task does."""
    numbers = np.arange(first, first + len(spans), dtype=np.int32)
    profiles = profile_rows(catalog, batch_of(spans), range(len(spans)), numbers)
    span_rows = SpanRows(
        number=numbers,
        series=np.array([catalog.series_number(span.series) for span in spans], np.int32),
        folder=np.array([catalog.folder_number(f"/base/{span.series.node}") for span in spans], np.int32),
        name=[span.name for span in spans],
        size_bytes=np.array([100 + len(span.name) for span in spans], np.int64),
        columns=columns_of([parse_span_name(span.name) for span in spans]),
    )
    return span_rows, profiles


def add(index: Index, spans: Sequence[Recorded]) -> None:
    """Add spans to an index as the storing task does."""
    rows, profiles = numbered(index.catalog, spans, index.next_number)
    index.add_rows(rows.number, index.add_spans(rows), profiles)


def index_of(*batches: Sequence[Recorded]) -> Index:
    """Make an index from batches."""
    index = Index(Catalog())
    for batch in batches:
        if batch:
            add(index, batch)
    return index


def train(step: int, start: float | None = None, end: float | None = None) -> str:
    """Name the span of one training step that takes a second, or other times."""
    begins = 1000.0 + step if start is None else start
    ends = begins + 1.0 if end is None else end
    return f"train-{step}-stepstart-{begins * 1e6}_train-{step}-stepend-{ends * 1e6}"


def entry_sums(index: Index, group: Group) -> dict[tuple[FunctionName, FunctionName | None], tuple[float, ...]]:
    """Spell a group's sums by entry out."""
    catalog = index.catalog
    number, values = group.entries.all()
    columns = (values.calls, values.primitive_calls, values.self_seconds, values.cumulative_seconds)
    sums = zip(*(column.tolist() for column in columns), strict=True)
    named: dict[tuple[FunctionName, FunctionName | None], tuple[float, ...]] = {}
    for entry, row in zip(number.tolist(), sums, strict=True):
        caller = int(catalog.entry_caller[entry])
        key = (
            catalog.functions[catalog.entry_function[entry]],
            None if caller == NO_CALLER else catalog.functions[caller],
        )
        named[key] = row
    return named


def label_sums(index: Index, group: Group) -> dict[str, tuple[float, ...]]:
    """Spell a group's sums by label out."""
    number, values = group.labels.all()
    columns = (values.calls, values.primitive_calls, values.self_seconds, values.cumulative_seconds)
    sums = zip(*(column.tolist() for column in columns), strict=True)
    return {index.catalog.labels[label]: row for label, row in zip(number.tolist(), sums, strict=True)}


def state(index: Index) -> list[object]:
    """Return all that an index knows, to the last bit; room that is not filled yet does not count."""
    groups = [
        (
            group.key,
            group.series,
            group.spans,
            group.first_us,
            group.last_us,
            group.negative,
            [
                column.tobytes()
                for number, sums in (group.entries.all(), group.labels.all())
                for column in (
                    number,
                    sums.calls,
                    sums.primitive_calls,
                    sums.self_seconds,
                    sums.cumulative_seconds,
                )
            ],
            np.trim_zeros(group.path_seconds, "b").tobytes(),
        )
        for group in index.groups
    ]
    columns = ("number", "series", "folder", "start_mode", "end_mode", "start_step", "end_step", "start_us", "end_us")
    return [
        groups,
        [index.spans.column(name).tolist() for name in columns],
        index.spans.name,
        index.next_number,
        {key: (histogram.counts, histogram.sum) for key, histogram in index.span_seconds.items()},
        index.last_step,
        index.last_end_us,
        {series: set(index.names_of(series)) for series in (NODE_0, NODE_1, SAMPLED)},
    ]


# -- totals ----------------------------------------------------------------------------------------------------------


def test_totals_are_kept_by_series_modes_and_job_phase() -> None:
    index = index_of(
        [
            Recorded(NODE_0, "prestepzero-*-start-1.0_train-0-stepstart-2.0"),
            Recorded(NODE_0, train(0)),
            Recorded(NODE_1, train(0)),
            Recorded(NODE_0, train(1)),
            Recorded(NODE_0, "train-2-stepstart-5.0_eval-0-stepstart-6.0"),
            Recorded(NODE_0, "train-2-stepstart-7.0_train-*-end-8.0"),
        ]
    )
    keys = [(group.key.node, group.key.start_mode, group.key.end_mode, group.key.job_phase) for group in index.groups]
    assert keys == [
        ("0-host", 5, 1, "initialization"),
        ("0-host", 1, 1, "training_loop"),
        ("1-host", 1, 1, "training_loop"),
        ("0-host", 1, 2, "training_loop"),
        ("0-host", 1, 1, "finalization"),
    ]
    assert [group.spans for group in index.groups] == [1, 2, 1, 1, 1]
    assert [group.series for group in index.groups] == [0, 0, 1, 0, 0]
    assert index.groups[1].key == GroupKey(
        job="training",
        framework="pytorch",
        profiler="cprofile",
        node="0-host",
        start_mode=1,
        end_mode=1,
        job_phase="training_loop",
    )


def test_a_group_sums_each_function_and_each_caller() -> None:
    index = index_of(
        [
            Recorded(NODE_0, train(0), [(A, None, 3, 2, 0.5, 1.0), (A, B, 3, 2, 0.5, 1.0), (B, None, 1, 1, 0.25, 2.0)]),
            Recorded(NODE_0, train(1), [(A, None, 1, 1, 0.125, 0.25), (A, C, 1, 1, 0.125, 0.25)]),
        ]
    )
    (group,) = index.groups
    assert entry_sums(index, group) == {
        (A, None): (4, 3, 0.625, 1.25),
        (A, B): (3, 2, 0.5, 1.0),
        (A, C): (1, 1, 0.125, 0.25),
        (B, None): (1, 1, 0.25, 2.0),
    }


def test_labels_take_own_rows_only_and_functions_that_share_a_label_together() -> None:
    twins = [(f"/node-{node}/app/a.py", 1, "a") for node in (0, 1)]
    index = index_of(
        [
            Recorded(
                NODE_0,
                train(0),
                [(twins[0], None, 1, 1, 0.5, 0.5), (twins[1], None, 2, 2, 1.0, 1.0), (twins[0], C, 9, 9, 9.0, 9.0)],
            )
        ]
    )
    assert label_sums(index, index.groups[0]) == {"app/a.py:1(a)": (3, 3, 1.5, 1.5)}


def test_negative_times_stay_in_answers_but_not_in_counters() -> None:
    index = index_of(
        [
            Recorded(
                NODE_0, train(0), [(A, None, 1, 1, -0.5, 1.0), (B, None, 1, 1, -0.25, -0.5), (A, B, 1, 1, -1.0, -1.0)]
            )
        ]
    )
    (group,) = index.groups
    assert entry_sums(index, group)[A, None] == (1, 1, -0.5, 1.0)
    assert label_sums(index, group) == {"app/a.py:1(a)": (1, 1, 0.0, 1.0), "app/b.py:2(b)": (1, 1, 0.0, 0.0)}
    assert group.negative == 3


def test_sampled_seconds_are_summed_by_path() -> None:
    index = index_of(
        [
            Recorded(SAMPLED, train(0), samples=[((A,), 0.5), ((A, B), 0.25)]),
            Recorded(SAMPLED, train(1), samples=[((A, B), 0.5), ((B,), 1.0)]),
        ]
    )
    assert index.groups[0].path_seconds[:3].tolist() == [0.5, 0.75, 1.0]


FUNCTIONS = st.sampled_from([A, B, C])
VALUES = st.floats(-1e-3, 1e3)
ROWS = st.lists(
    st.tuples(FUNCTIONS, st.none() | FUNCTIONS, st.integers(0, 2**40), st.integers(0, 2**40), VALUES, VALUES),
    max_size=5,
    unique_by=lambda row: row[:2],
)
MOMENTS = st.builds(
    "{}-{}-{}".format,
    st.sampled_from(["train", "eval", "prestepzero"]),
    st.sampled_from(["*", "0", "3", "17"]),
    st.sampled_from([phase.value for phase in StepPhase]),
)
SPANS = st.lists(
    st.builds(
        Recorded,
        series=st.sampled_from([NODE_0, NODE_1, SAMPLED]),
        name=st.builds("{0}-{2}_{1}-{3}".format, MOMENTS, MOMENTS, st.floats(0, 1e10), st.floats(0, 1e10)),
        rows=ROWS,
        samples=st.lists(
            st.tuples(st.lists(FUNCTIONS, min_size=1, max_size=3).map(tuple), st.floats(0, 1e3)),
            max_size=3,
            unique_by=lambda sample: sample[0],
        ),
    ),
    max_size=12,
)


@given(SPANS)
def test_totals_are_those_of_adding_span_by_span(spans: list[Recorded]) -> None:
    expected: dict[object, dict[object, tuple[float, ...]]] = defaultdict(dict)
    counts: dict[object, int] = defaultdict(int)
    for span in spans:
        said = parse_span_name(span.name)
        key: object = (span.series, said.training_phase, said.job_phase)
        counts[key] += 1
        for function, caller, *values in span.rows:
            before = expected[key].get((function, caller), (0, 0, 0.0, 0.0))
            expected[key][function, caller] = tuple(old + new for old, new in zip(before, values, strict=True))
    index = index_of(spans)
    groups = {
        (index.catalog.series[group.series], (group.key.start_mode, group.key.end_mode), group.key.job_phase): group
        for group in index.groups
    }
    assert {key: group.spans for key, group in groups.items()} == counts
    for key, group in groups.items():
        assert entry_sums(index, group) == expected[key]


@given(SPANS, st.lists(st.integers(0, 12), max_size=5))
def test_an_index_is_the_same_to_the_last_bit_however_spans_came_in_batches(
    spans: list[Recorded], cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(spans)) for cut in cuts), len(spans)]
    whole, parts = index_of(spans), index_of(*(spans[start:end] for start, end in pairwise(bounds)))
    if whole.catalog.functions == parts.catalog.functions and entry_order(whole) == entry_order(parts):
        assert state(parts) == state(whole)
    assert [entry_sums(parts, group) for group in parts.groups] == [entry_sums(whole, group) for group in whole.groups]
    assert [label_sums(parts, group) for group in parts.groups] == [label_sums(whole, group) for group in whole.groups]


def entry_order(index: Index) -> list[tuple[int, int]]:
    """Return the catalogue's entries; a batch numbers its own in the order of its names."""
    return list(zip(index.catalog.entry_function.tolist(), index.catalog.entry_caller.tolist(), strict=True))


# -- spans -----------------------------------------------------------------------------------------------------------


def test_times_steps_and_lengths_are_known_per_series() -> None:
    index = index_of(
        [
            Recorded(NODE_0, train(7)),
            Recorded(NODE_0, train(3, end=5000.0)),
            Recorded(NODE_1, train(1, start=10.0, end=9.0)),
            Recorded(NODE_0, "prestepzero-*-start-1000000.0_train-0-stepstart-2000000.0"),
        ]
    )
    assert index.last_step == {(0, 1): 7, (1, 1): 1}
    assert index.last_end_us == {0: 5000e6, 1: 9e6}
    assert (index.groups[0].first_us, index.groups[0].last_us) == (1003e6, 5000e6)
    start, end = StepPhase.STEP_START.order, StepPhase.STEP_END.order
    histogram = index.span_seconds[0, PythonProfileModes.TRAIN, start, end]
    assert histogram.counts[BOUNDS_SECONDS.index(1.0)] == 1
    assert histogram.counts[-1] == 1
    assert histogram.sum == pytest.approx(1.0 + 3997.0)
    assert index.span_seconds[1, PythonProfileModes.TRAIN, start, end].sum == 0.0


def test_what_names_say_is_laid_out_for_selection() -> None:
    index = index_of([Recorded(NODE_0, train(3))], [Recorded(NODE_0, "train-4-stepstart-1.5_train-*-end-2.5")])
    said = index.spans.said()
    assert said.start_step.tolist() == [3, 4]
    assert said.end_step.tolist() == [3, 2**63 - 1]
    assert said.end_us.tolist() == [1004e6, 2.5]
    assert (len(index.spans), index.spans.name) == (2, [train(3), "train-4-stepstart-1.5_train-*-end-2.5"])


def test_spans_that_retention_drops_are_gone_from_the_table_and_nowhere_else() -> None:
    index = index_of([Recorded(NODE_0, train(step), [(A, None, 1, 1, 0.5, 0.5)]) for step in range(5)])
    index.drop_spans(np.array([0, 1, 3], np.int32))
    assert index.spans.column("number").tolist() == [2, 4]
    assert index.spans.name == [train(2), train(4)]
    assert index.groups[0].spans == 5
    assert entry_sums(index, index.groups[0]) == {(A, None): (5, 5, 2.5, 2.5)}
    assert index.names_of(NODE_0) == {train(step) for step in range(5)}
    add(index, [Recorded(NODE_0, train(9))])
    assert index.spans.column("number").tolist() == [2, 4, 5]
    assert index.spans.said().start_step.tolist() == [2, 4, 9]


def test_spans_whose_rows_were_dropped_are_counted_but_cannot_be_selected() -> None:
    index = Index(Catalog())
    rows, _ = numbered(index.catalog, [Recorded(NODE_0, train(step)) for step in range(3)], 0)
    groups = index.add_spans(rows, kept=np.array([False, True, False]))
    assert groups.tolist() == [0, 0, 0]
    assert (index.groups[0].spans, index.spans.name, index.next_number) == (3, [train(1)], 3)
    assert index.names_of(NODE_0) == {train(0), train(1), train(2)}


def test_every_change_raises_the_generation() -> None:
    index = Index(Catalog())
    seen = [index.generation]
    rows, profiles = numbered(index.catalog, [Recorded(NODE_0, train(0), [(A, None, 1, 1, 0.5, 0.5)])], 0)
    groups = index.add_spans(rows)
    seen.append(index.generation)
    index.add_rows(rows.number, groups, profiles)
    seen.append(index.generation)
    index.drop_spans(rows.number)
    seen.append(index.generation)
    assert seen == sorted(set(seen))


def test_names_are_known_by_series_and_the_set_grows() -> None:
    index = Index(Catalog())
    names = index.names_of(NODE_1)
    assert names == set()
    add(index, [Recorded(NODE_0, train(0)), Recorded(NODE_1, train(1))])
    assert names == {train(1)}


def test_an_index_without_spans_is_empty() -> None:
    index = index_of()
    assert (index.groups, len(index.spans), index.next_number) == ([], 0, 0)


@given(st.lists(st.integers(0, 4), max_size=20))
def test_runs_give_each_number_its_rows_in_their_order(numbers: list[int]) -> None:
    found = {number: picked.tolist() for number, picked in runs_of(np.array(numbers, np.int32))}
    expected: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers):
        expected[number].append(place)
    assert found == expected
