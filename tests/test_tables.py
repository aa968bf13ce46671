"""Tables of functions: their order, what a limit keeps, and the rows that answers show."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.profiles.columns import FunctionName
from monitor.tables import SORT_KEYS, CallerTable, FunctionRow, Measures, SortKey, StatsTable, function_rows, sort_table

Numbers = tuple[int, int, float, float]
"""Calls, primitive calls, self seconds, cumulative seconds."""

A, B, C, D = ("/a.py", 2, "f"), ("/a.py", 10, "f"), ("/b.py", 1, "a"), ("/b.py", 1, "g")


def measures(rows: Sequence[Numbers]) -> Measures:
    """Lay rows out as columns."""
    calls, primitive, own, cumulative = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Measures(
        calls=np.array(calls, np.int64),
        primitive_calls=np.array(primitive, np.int64),
        self_seconds=np.array(own, np.float64),
        cumulative_seconds=np.array(cumulative, np.float64),
    )


def table(
    rows: Sequence[tuple[FunctionName, Numbers]],
    callers: Sequence[tuple[FunctionName, FunctionName, Numbers]] | None = None,
    *,
    counts_calls: bool = True,
) -> StatsTable:
    """Make a table of functions, and of (function, caller, numbers)."""
    names = sorted({name for name, _ in rows} | {caller for _, caller, _ in callers or []}, reverse=True)
    edges = None
    if callers is not None:
        edges = CallerTable(
            function=np.array([names.index(function) for function, _, _ in callers], np.int32),
            caller=np.array([names.index(caller) for _, caller, _ in callers], np.int32),
            measures=measures([numbers for _, _, numbers in callers]),
        )
    return StatsTable(
        spans=3,
        from_seconds=1.0,
        to_seconds=2.0,
        counts_calls=counts_calls,
        names=names,
        function=np.array([names.index(name) for name, _ in rows], np.int32),
        measures=measures([numbers for _, numbers in rows]),
        callers=edges,
    )


def order(of: StatsTable) -> list[FunctionName]:
    """Return the functions of a table in its order."""
    return [of.names[position] for position in of.function.tolist()]


@pytest.mark.parametrize(
    ("by", "names"),
    [("self", [A, B, C]), ("cumulative", [B, C, A]), ("calls", [C, A, B]), ("primitive_calls", [C, B, A])],
)
def test_the_largest_comes_first_by_each_measure(by: SortKey, names: list[FunctionName]) -> None:
    given_table = table([(B, (1, 2, 0.2, 9.0)), (C, (3, 3, -0.1, 8.0)), (A, (2, 1, 0.3, 7.0))])
    assert order(sort_table(given_table, by)) == names


@pytest.mark.parametrize("by", SORT_KEYS)
@given(names=st.permutations([A, B, C, D]))
def test_ties_stand_in_the_order_of_file_line_and_name(by: SortKey, names: list[FunctionName]) -> None:
    equal = table([(name, (1, 1, 0.5, 0.5)) for name in names])
    assert order(sort_table(equal, by)) == [A, B, C, D]
    assert order(sort_table(equal, by, limit=2)) == [A, B]


NAMES = st.tuples(st.sampled_from("xyz"), st.integers(0, 3), st.sampled_from("fg"))
FEW = st.integers(0, 3)
ROWS = st.dictionaries(NAMES, st.tuples(FEW, FEW, FEW.map(float), st.integers(-2, 2).map(float)), max_size=12)


@given(ROWS, st.sampled_from(SORT_KEYS), st.none() | st.integers(0, 14))
def test_the_order_is_that_of_the_measure_and_then_of_the_name(
    rows: dict[FunctionName, Numbers], by: SortKey, limit: int | None
) -> None:
    place = {"calls": 0, "primitive_calls": 1, "self": 2, "cumulative": 3}[by]
    expected = sorted(rows.items(), key=lambda row: (-row[1][place], row[0]))[:limit]
    cut = sort_table(table(list(rows.items())), by, limit)
    assert order(cut) == [name for name, _ in expected]
    values = [cut.measures.calls, cut.measures.primitive_calls, cut.measures.self_seconds]
    assert [column.tolist() for column in values] == [[numbers[n] for _, numbers in expected] for n in range(3)]


CALLERS = [
    (A, C, (1, 1, 0.25, 0.5)),
    (B, A, (2, 1, 0.5, 0.5)),
    (A, A, (4, 2, 0.75, 0.75)),
    (C, D, (1, 1, 0.125, 0.25)),
]
CALLED = [(A, (5, 3, 1.0, 1.25)), (B, (2, 1, 0.5, 0.5)), (C, (1, 1, 0.125, 0.25))]


def test_a_limit_cuts_the_callers_of_what_it_cuts() -> None:
    cut = sort_table(table(CALLED, CALLERS), "self", limit=1)
    assert order(cut) == [A]
    assert cut.callers is not None
    assert {cut.names[position] for position in cut.callers.function.tolist()} == {A}
    assert sorted(cut.callers.measures.calls.tolist()) == [1, 4]
    assert [row.key for row in function_rows(cut)[0].callers or []] == [A, C]


def test_a_limit_keeps_a_caller_that_is_itself_cut() -> None:
    (row,) = function_rows(sort_table(table(CALLED, [(A, C, (1, 1, 0.25, 0.5))]), "self", limit=1))
    assert [caller.key for caller in row.callers or []] == [C]


@pytest.mark.parametrize("limit", [None, 3, 99])
def test_a_limit_that_cuts_nothing_keeps_all_callers(limit: int | None) -> None:
    cut = sort_table(table(CALLED, CALLERS), "calls", limit)
    assert cut.callers is not None
    assert len(cut.callers.function) == 4


def test_a_limit_of_nothing_leaves_nothing() -> None:
    cut = sort_table(table(CALLED, CALLERS), "self", limit=0)
    assert function_rows(cut) == []
    assert cut.callers is not None
    assert len(cut.callers.function) == 0
    assert (cut.spans, cut.from_seconds, cut.to_seconds) == (3, 1.0, 2.0)


def test_an_empty_table_is_sorted() -> None:
    assert function_rows(sort_table(table([], []), "self", limit=5)) == []


def test_sorting_leaves_the_table_that_was_given_as_it_was() -> None:
    given_table = table(CALLED, CALLERS)
    before = (order(given_table), given_table.measures.self_seconds.tolist())
    sort_table(given_table, "calls", limit=1)
    assert (order(given_table), given_table.measures.self_seconds.tolist()) == before


def test_rows_stand_in_the_order_of_the_table_and_carry_their_callers() -> None:
    rows = function_rows(table([*CALLED, (D, (0, 0, 0.0, 0.0))], CALLERS))
    assert [row.key for row in rows] == [A, B, C, D]
    assert rows[0] == FunctionRow(
        "/a.py",
        2,
        "f",
        3,
        5,
        1.0,
        1.25,
        [FunctionRow("/a.py", 2, "f", 2, 4, 0.75, 0.75), FunctionRow("/b.py", 1, "a", 1, 1, 0.25, 0.5)],
    )
    assert rows[3].callers == []


def test_callers_with_equal_self_time_stand_in_the_order_of_their_names() -> None:
    equal = (1, 1, 0.5, 0.5)
    rows = function_rows(table([(A, equal)], [(A, D, equal), (A, B, equal), (A, C, equal)]))
    assert [caller.key for caller in rows[0].callers or []] == [B, C, D]


def test_without_callers_no_row_has_any() -> None:
    (row,) = function_rows(table([(A, (5, 3, 1.0, 1.25))]))
    assert row.callers is msgspec.UNSET
    assert "callers" not in msgspec.json.decode(msgspec.json.encode(row))


def test_a_sampler_has_no_calls_not_zero_calls() -> None:
    (row,) = function_rows(table([(A, (0, 0, 1.0, 1.25))], [(A, B, (0, 0, 1.0, 1.25))], counts_calls=False))
    assert (row.calls, row.primitive_calls, row.self_seconds) == (None, None, 1.0)
    assert isinstance(row.callers, list)
    assert (row.callers[0].calls, row.callers[0].primitive_calls) == (None, None)


def test_measures_are_picked_and_copied() -> None:
    given_measures = measures([(1, 2, 3.0, 4.0), (5, 6, 7.0, 8.0)])
    picked = given_measures.take(np.array([1, 1], np.int32))
    assert (picked.calls.tolist(), picked.cumulative_seconds.tolist()) == ([5, 5], [8.0, 8.0])
    copied = given_measures.copy()
    copied.self_seconds[0] = 99.0
    assert given_measures.self_seconds.tolist() == [3.0, 7.0]
