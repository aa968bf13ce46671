"""Which clocks are wrong: a steady difference at equal steps is a clock's, other differences are the work's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from monitor.clock_skew import Seen, Skew, find_skews

NOW = 2_000_000.0
Offset = Callable[[int], float]


def run_of(
    *offsets: Offset, steps: int = 40, step_seconds: float = 0.5, names: Iterable[str] = "abcdefgh"
) -> list[Seen]:
    """A run whose nodes start each step when told, after all of them could have."""
    return [
        Seen("job", node, "train", "stepstart", step, start, start + step_seconds)
        for node, offset in zip(names, offsets, strict=False)
        for step in range(steps)
        for start in [1_000_000.0 + step * step_seconds + offset(step)]
    ]


def steady(seconds: float) -> Offset:
    """A clock that is off by so much, on a node that has some noise."""
    noise = random.Random(7)
    return lambda step: seconds + noise.uniform(0, 0.1)


def found(spans: list[Seen]) -> list[tuple[str, float]]:
    return [(skew.node, round(skew.seconds)) for skew in find_skews(spans, NOW)]


def test_clocks_that_agree_are_not_told() -> None:
    assert found(run_of(steady(0.0), steady(0.3), steady(-0.2))) == []


@pytest.mark.parametrize("seconds", [30.0, -30.0, 3600.0])
def test_a_clock_that_is_off_is_told(seconds: float) -> None:
    assert found(run_of(steady(0), steady(seconds), steady(0), steady(0))) == [("b", seconds)]


def test_of_two_nodes_both_are_told_for_nobody_knows_which_is_right() -> None:
    assert found(run_of(steady(0), steady(30))) == [("a", -30), ("b", 30)]


def test_a_node_that_falls_behind_more_and_more_has_a_right_clock() -> None:
    assert found(run_of(steady(0), lambda step: step * 5.0, steady(0))) == []


def test_a_straggler_within_two_steps_has_a_right_clock() -> None:
    assert found(run_of(steady(0), steady(15.0), steady(0), step_seconds=10.0)) == []
    assert found(run_of(steady(0), steady(25.0), steady(0), step_seconds=10.0)) == [("b", 25)]


def test_a_few_steps_prove_nothing() -> None:
    assert found(run_of(steady(0), steady(30), steady(0), steps=4)) == []
    assert found(run_of(steady(0), steady(30), steady(0), steps=5)) == [("b", 30)]


def test_steps_of_different_jobs_are_not_compared() -> None:
    other = [span._replace(job="other", node="z", start=span.start + 50) for span in run_of(steady(0))]
    assert found([*run_of(steady(0)), *other]) == []


def test_what_belongs_to_a_node_may_run_ahead_of_it() -> None:
    names = ["0-algo-1", "0-algo-1-worker-3", "1-algo-10"]
    assert found(run_of(steady(0), steady(-30), steady(0), names=names)) == []


def test_a_span_that_ends_in_the_future_is_told_of_one_node_too() -> None:
    spans = run_of(steady(0))
    now = max(span.end for span in spans)
    assert find_skews(spans, now - 4) == []
    assert find_skews(spans, now - 60) == [Skew(job="job", node="a", seconds=60.0, moments=0)]


def test_nothing_is_nothing() -> None:
    assert find_skews([], NOW) == []
