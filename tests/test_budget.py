"""The budget of series: nothing shown ever falls or vanishes, and what is shown adds up to the true total."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.budget import Amount, GroupBudget, Series, Shown, score
from monitor.profiles.columns import Ids
from monitor.sums import Sums
from monitor.tables import Measures

Row = tuple[int, int, int, float, float]
"""Label, calls, primitive calls, self seconds, cumulative seconds."""


def measures(rows: Sequence[Row]) -> Measures:
    """Lay rows out as columns."""
    return Measures(
        calls=np.array([row[1] for row in rows], np.int64),
        primitive_calls=np.array([row[2] for row in rows], np.int64),
        self_seconds=np.array([row[3] for row in rows], np.float64),
        cumulative_seconds=np.array([row[4] for row in rows], np.float64),
    )


def add(sums: Sums, rows: Sequence[Row]) -> None:
    """Add rows to the totals of a phase."""
    sums.add(np.array([row[0] for row in rows], np.int32), measures(rows))


def totals(seconds: Mapping[int, float]) -> tuple[Ids, Measures]:
    """Make the totals of a phase from seconds alone; a function has as many calls as seconds."""
    sums = Sums()
    add(sums, [(label, int(own), int(own), own, own) for label, own in seconds.items()])
    return sums.all()


def own_seconds(series: Series) -> tuple[dict[int, float], float]:
    """Return the self seconds of each series, and of `(other)`."""
    return {label: amount.self_seconds for label, amount in series.shown.items()}, series.other.self_seconds


def active(budget: GroupBudget) -> set[int]:
    """Return the labels whose series grow."""
    return {label for label, shown in budget.shown.items() if shown.active}


# -- laws ------------------------------------------------------------------------------------------------------------


class Watcher:
    """Scrapes one phase again and again, and holds every scrape against the one before and against the truth."""

    def __init__(self) -> None:
        self.before: Series | None = None
        self.highest_limit = 0

    def scrape(self, budget: GroupBudget, sums: Sums) -> None:
        """Check one scrape. Before anything was chosen there is none."""
        if not budget.published:
            return
        labels, total = sums.all()
        now = budget.series(labels, total)
        self.check_total([*now.shown.values(), now.other], total)
        if self.before is not None:
            self.check_growth(self.before, now)
        assert len(now.shown) + 1 <= 2 * self.highest_limit + 1
        assert len(active(budget)) <= self.highest_limit
        self.before = now

    def check_total(self, amounts: Sequence[Amount], total: Measures) -> None:
        for name in ("calls", "primitive_calls"):
            assert sum(getattr(amount, name) for amount in amounts) == int(getattr(total, name).sum())
        for name in ("self_seconds", "cumulative_seconds"):
            shown = math.fsum(getattr(amount, name) for amount in amounts)
            assert shown == pytest.approx(math.fsum(getattr(total, name).tolist()), rel=1e-9, abs=1e-12)

    def check_growth(self, before: Series, now: Series) -> None:
        assert before.shown.keys() <= now.shown.keys()
        pairs = [(amount, now.shown[label]) for label, amount in before.shown.items()]
        for old, new in [*pairs, (before.other, now.other)]:
            assert all(after >= earlier for earlier, after in zip(astuple(old), astuple(new), strict=True))


SECONDS = st.one_of(st.floats(0, 1e6), st.floats(0, 1e-6), st.sampled_from([0.0, 0.1, 1 / 3, 1e-300]))
COUNTS = st.integers(0, 2**40)
ROWS = st.lists(st.tuples(st.integers(0, 15), COUNTS, COUNTS, SECONDS, SECONDS), max_size=20)
ACTIONS = st.lists(st.one_of(ROWS, st.just("choose"), st.integers(0, 5)), max_size=40)


@settings(max_examples=300)
@given(st.integers(0, 4), ACTIONS)
def test_no_series_falls_or_vanishes_and_their_sum_is_the_total(
    limit: int, actions: list[list[Row] | str | int]
) -> None:
    sums, budget, watcher = Sums(), GroupBudget(limit=limit), Watcher()
    watcher.highest_limit = limit
    for action in actions:
        if isinstance(action, int):
            budget = replace(budget, limit=action)
            watcher.highest_limit = max(watcher.highest_limit, action)
        elif isinstance(action, str):
            budget = budget.chosen(*sums.all())
        else:
            add(sums, action)
        watcher.scrape(budget, sums)


@settings(max_examples=200)
@given(st.integers(1, 3), st.lists(st.integers(0, 11), min_size=1, max_size=60))
def test_functions_that_take_turns_at_the_top_break_no_law(limit: int, turns: list[int]) -> None:
    sums, budget, watcher = Sums(), GroupBudget(limit=limit), Watcher()
    watcher.highest_limit, seconds = limit, 0.1
    for label in turns:
        seconds *= 1.7
        add(sums, [(label, 1, 1, seconds, seconds)])
        budget = budget.chosen(*sums.all())
        watcher.scrape(budget, sums)
        frozen = len(budget.shown) - len(active(budget))
        assert frozen <= limit


@given(ROWS, st.integers(0, 5))
def test_choosing_again_for_the_same_totals_soon_changes_nothing(rows: list[Row], limit: int) -> None:
    sums, budget = Sums(), GroupBudget(limit=limit)
    add(sums, rows)
    for _ in range(3):
        budget = budget.chosen(*sums.all())
    assert budget.chosen(*sums.all()) is budget


# -- what the rules say, in numbers ----------------------------------------------------------------------------------


def test_the_first_functions_start_with_all_they_have() -> None:
    first = totals({1: 8.0, 2: 4.0, 3: 2.0, 4: 1.0})
    budget = GroupBudget(limit=2).chosen(*first)
    assert own_seconds(budget.series(*first)) == ({1: 8.0, 2: 4.0}, 3.0)


def test_a_phase_without_functions_has_nothing_to_choose_and_shows_nothing() -> None:
    empty = GroupBudget(limit=2)
    assert empty.chosen(*Sums().all()) is empty
    assert not empty.published


def test_a_function_that_is_promoted_later_starts_from_zero_and_other_keeps_what_it_had() -> None:
    first, later = totals({1: 8.0, 2: 4.0, 3: 2.0}), totals({1: 8.0, 2: 4.0, 3: 20.0})
    budget = GroupBudget(limit=2).chosen(*first).chosen(*later)
    assert own_seconds(budget.series(*later)) == ({1: 8.0, 2: 4.0, 3: 0.0}, 20.0)
    assert own_seconds(budget.series(*totals({1: 8.0, 2: 5.0, 3: 23.0}))) == ({1: 8.0, 2: 4.0, 3: 3.0}, 21.0)


def test_a_function_that_comes_back_goes_on_where_it_stood() -> None:
    budget = GroupBudget(limit=1).chosen(*totals({1: 4.0}))
    budget = budget.chosen(*totals({1: 4.0, 2: 8.0}))
    budget = budget.chosen(*totals({1: 32.0, 2: 8.0}))
    assert active(budget) == {1}
    assert own_seconds(budget.series(*totals({1: 35.0, 2: 9.0}))) == ({1: 7.0, 2: 0.0}, 37.0)


def test_room_that_is_left_is_filled_at_once() -> None:
    budget = GroupBudget(limit=3).chosen(*totals({1: 4.0}))
    budget = budget.chosen(*totals({1: 4.0, 2: 0.001}))
    assert active(budget) == {1, 2}


@pytest.mark.parametrize(("challenger", "wins"), [(8.0, False), (11.0, False), (13.0, True)])
def test_a_challenger_must_be_clearly_better(challenger: float, wins: bool) -> None:
    budget = GroupBudget(limit=1).chosen(*totals({1: 8.0}))
    budget = budget.chosen(*totals({1: 8.0, 2: challenger}))
    assert active(budget) == ({2} if wins else {1})


def test_nobody_is_demoted_any_more_when_as_many_as_the_limit_are_frozen() -> None:
    budget = GroupBudget(limit=1).chosen(*totals({1: 1.0}))
    budget = budget.chosen(*totals({1: 1.0, 2: 10.0}))
    later = totals({1: 1.0, 2: 10.0, 3: 1000.0})
    assert budget.chosen(*later) is budget
    assert own_seconds(budget.series(*later)) == ({1: 1.0, 2: 0.0}, 1010.0)


def test_a_frozen_function_may_still_come_back_when_that_many_are_frozen() -> None:
    budget = GroupBudget(limit=1).chosen(*totals({1: 1.0}))
    budget = budget.chosen(*totals({1: 1.0, 2: 10.0}))
    budget = budget.chosen(*totals({1: 100.0, 2: 10.0}))
    assert active(budget) == {1}
    assert budget.shown.keys() == {1, 2}


def test_a_lower_limit_freezes_the_weakest_and_keeps_their_series() -> None:
    amounts = totals({1: 8.0, 2: 4.0, 3: 2.0})
    budget = replace(GroupBudget(limit=3).chosen(*amounts), limit=1).chosen(*amounts)
    assert active(budget) == {1}
    assert own_seconds(budget.series(*totals({1: 9.0, 2: 5.0, 3: 3.0}))) == ({1: 9.0, 2: 4.0, 3: 2.0}, 2.0)


def test_a_higher_limit_lets_more_functions_in() -> None:
    amounts = totals({1: 8.0, 2: 4.0, 3: 2.0})
    budget = replace(GroupBudget(limit=1).chosen(*amounts), limit=3).chosen(*amounts)
    assert active(budget) == {1, 2, 3}
    assert own_seconds(budget.series(*amounts)) == ({1: 8.0, 2: 0.0, 3: 0.0}, 6.0)


def test_a_limit_of_nothing_puts_everything_in_other() -> None:
    amounts = totals({1: 8.0, 2: 4.0})
    budget = GroupBudget(limit=0).chosen(*amounts)
    assert budget.published
    assert own_seconds(budget.series(*amounts)) == ({}, 12.0)


def test_equal_functions_are_chosen_by_their_number_so_that_equal_runs_show_equal_series() -> None:
    for order in ([3, 1, 2], [2, 3, 1], [1, 2, 3]):
        assert active(GroupBudget(limit=2).chosen(*totals(dict.fromkeys(order, 1.0)))) == {1, 2}


def test_other_is_rounded_once_however_many_parts_it_has() -> None:
    sums = Sums()
    add(sums, [(label, 0, 0, 0.1, 0.0) for label in range(1, 11)] + [(0, 0, 0, 5.0, 0.0)])
    series = GroupBudget(limit=1).chosen(*sums.all()).series(*sums.all())
    assert series.other.self_seconds == 1.0
    assert sum([0.1] * 10) != 1.0


def test_other_stays_at_its_floor_where_rounding_would_make_it_fall() -> None:
    budget = GroupBudget(limit=1, shown={1: Shown(active=True)}, floor=Amount(self_seconds=5.0), published=True)
    assert budget.series(*totals({1: 1.0, 2: 4.0})).other.self_seconds == 5.0
    assert budget.series(*totals({1: 1.0, 2: 6.0})).other.self_seconds == 6.0


def test_a_state_does_not_change_when_the_next_one_is_chosen() -> None:
    first = GroupBudget(limit=1).chosen(*totals({1: 1.0}))
    kept = dict(first.shown)
    first.chosen(*totals({1: 1.0, 2: 10.0}))
    assert dict(first.shown) == kept
    assert own_seconds(first.series(*totals({1: 1.0, 2: 10.0}))) == ({1: 1.0}, 10.0)


def test_self_time_counts_most_and_cumulative_time_and_calls_count_too() -> None:
    rows = [(1, 0, 0, 1.0, 1.0), (2, 0, 0, 0.0, 4.0), (3, 9, 9, 0.0, 0.0), (4, 0, 0, 0.0, 0.0)]
    own, cumulative, calls, nothing = score(measures(rows)).tolist()
    assert own > cumulative > calls > nothing == 0.0


def test_a_phase_in_which_nothing_was_measured_is_scored() -> None:
    assert score(measures([(1, 0, 0, 0.0, 0.0)])).tolist() == [0.0]
