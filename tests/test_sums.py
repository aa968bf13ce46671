"""Sums: the same rows in the same order give the same bits, and in any order the same counts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.profiles.columns import Floats, Ids
from monitor.sums import Sums, grown, merge_paths, merge_sums
from monitor.tables import Measures

Row = tuple[int, int, int, float, float]
"""Number, calls, primitive calls, self seconds, cumulative seconds."""

COUNTS = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e9, allow_nan=False)
NUMBERS = st.one_of(st.integers(0, 5), st.integers(0, 5_000))
ROWS = st.lists(st.tuples(NUMBERS, COUNTS, COUNTS, SECONDS, SECONDS), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=6)


def measures(rows: Sequence[Row]) -> Measures:
    """Lay rows out as columns."""
    return Measures(
        calls=np.array([row[1] for row in rows], np.int64),
        primitive_calls=np.array([row[2] for row in rows], np.int64),
        self_seconds=np.array([row[3] for row in rows], np.float64),
        cumulative_seconds=np.array([row[4] for row in rows], np.float64),
    )


def added(parts: Sequence[Sequence[Row]]) -> Sums:
    """Add parts one after the other."""
    sums = Sums()
    for rows in parts:
        sums.add(np.array([row[0] for row in rows], np.int32), measures(rows))
    return sums


def cut_up(rows: list[Row], cuts: list[int]) -> list[list[Row]]:
    """Cut rows into batches, some of which are empty."""
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [rows[start:end] for start, end in pairwise(bounds)]


def bits(part: tuple[Ids, Measures]) -> list[bytes]:
    """Return what a sum holds, order and last bits included."""
    number, values = part
    columns = (number, values.calls, values.primitive_calls, values.self_seconds, values.cumulative_seconds)
    return [column.tobytes() for column in columns]


def by_number(part: tuple[Ids, Measures]) -> dict[int, tuple[int, int, float, float]]:
    """Return what a sum holds by number, each of which may stand there once."""
    number, values = part
    columns = (values.calls, values.primitive_calls, values.self_seconds, values.cumulative_seconds)
    result = dict(zip(number.tolist(), zip(*(column.tolist() for column in columns), strict=True), strict=True))
    assert len(result) == len(number)
    return result


def added_plainly(rows: Sequence[Row]) -> dict[int, tuple[int, int, float, float]]:
    """Add rows up with Python's own numbers, one after the other."""
    result: dict[int, tuple[int, int, float, float]] = {}
    for number, calls, primitive, own, cumulative in rows:
        before = result.get(number, (0, 0, 0.0, 0.0))
        result[number] = (before[0] + calls, before[1] + primitive, before[2] + own, before[3] + cumulative)
    return result


def assert_equal(
    mine: dict[int, tuple[int, int, float, float]], expected: dict[int, tuple[int, int, float, float]]
) -> None:
    """Counts are equal, seconds within 1e-9."""
    assert mine.keys() == expected.keys()
    for number, values in mine.items():
        assert values[:2] == expected[number][:2]
        assert values[2:] == pytest.approx(expected[number][2:], rel=1e-9, abs=0)


@given(ROWS)
def test_sums_are_those_of_adding_one_row_after_the_other(rows: list[Row]) -> None:
    assert by_number(added([rows]).all()) == added_plainly(rows)


@given(ROWS, CUTS, CUTS)
def test_the_same_rows_in_the_same_order_give_the_same_bits_however_they_are_cut(
    rows: list[Row], cuts: list[int], others: list[int]
) -> None:
    whole = bits(added([rows]).all())
    assert bits(added(cut_up(rows, cuts)).all()) == whole
    assert bits(added(cut_up(rows, others)).all()) == whole
    assert bits(added([[row] for row in rows]).all()) == whole


@given(ROWS, CUTS, CUTS, st.randoms(use_true_random=False))
def test_merging_in_any_order_and_grouping_gives_the_same(
    rows: list[Row], cuts: list[int], groups: list[int], chance: random.Random
) -> None:
    parts = cut_up(rows, cuts)
    chance.shuffle(parts)
    flat = merge_sums([added([part]).all() for part in parts])
    bounds = [0, *sorted(min(group, len(parts)) for group in groups), len(parts)]
    nested = merge_sums([merge_sums([added([part]).all() for part in parts[a:b]]) for a, b in pairwise(bounds)])
    expected = added_plainly(rows)
    assert_equal(by_number(flat), expected)
    assert_equal(by_number(nested), expected)


def test_numbers_stand_in_the_order_of_first_sight() -> None:
    sums = added([[(7, 1, 1, 0.0, 0.0), (3, 1, 1, 0.0, 0.0), (7, 1, 1, 0.0, 0.0)], [(9, 1, 1, 0.0, 0.0)]])
    assert sums.all()[0].tolist() == [7, 3, 9]


def test_sums_without_rows_are_empty() -> None:
    for part in (Sums().all(), added([[], []]).all(), merge_sums([]), merge_sums([Sums().all(), Sums().all()])):
        assert by_number(part) == {}


def test_merging_changes_none_of_its_parts() -> None:
    one, other = added([[(1, 1, 1, 0.5, 0.5)]]), added([[(1, 2, 2, 1.0, 1.0), (0, 1, 1, 0.25, 0.25)]])
    before = bits(one.all()), bits(other.all())
    merged = merge_sums([one.all(), other.all()])
    assert (bits(one.all()), bits(other.all())) == before
    assert by_number(merged) == {0: (1, 1, 0.25, 0.25), 1: (3, 3, 1.5, 1.5)}


def test_counts_do_not_lose_a_call_where_a_float_would() -> None:
    rows = [(0, 2**53, 2**53, 0.0, 0.0), (0, 1, 1, 0.0, 0.0)]
    assert by_number(added([rows]).all())[0][:2] == (2**53 + 1, 2**53 + 1)
    assert by_number(merge_sums([added([[row]]).all() for row in rows]))[0][:2] == (2**53 + 1, 2**53 + 1)


def test_a_number_far_out_takes_a_place_and_not_a_row() -> None:
    sums = added([[(1_000_000, 1, 1, 0.5, 0.5)]])
    assert by_number(sums.all()) == {1_000_000: (1, 1, 0.5, 0.5)}


@given(st.lists(st.lists(st.integers(0, 8).map(float), max_size=8), max_size=6))
def test_paths_are_added_by_number_and_those_without_time_are_left_out(parts: list[list[float]]) -> None:
    expected: dict[int, float] = {}
    for part in parts:
        for path, seconds in enumerate(part):
            expected[path] = expected.get(path, 0.0) + seconds
    columns: list[Floats] = [np.array(part, np.float64) for part in parts]
    paths, sums = merge_paths(columns)
    left = {path: seconds for path, seconds in expected.items() if seconds}
    assert dict(zip(paths.tolist(), sums.tolist(), strict=True)) == left
    assert [column.tolist() for column in columns] == parts


def test_a_column_grows_by_doubling_and_keeps_what_it_has() -> None:
    column = np.array([4, 5], np.int32)
    assert grown(column, 2) is column
    bigger = grown(column, 3, fill=-1)
    assert bigger[:4].tolist() == [4, 5, -1, -1]
    assert len(grown(bigger, len(bigger) + 1)) == 2 * len(bigger)
    assert bigger.dtype == np.int32
