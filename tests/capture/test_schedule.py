"""Which steps a schedule chooses, asked step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monitor.capture.schedule import Schedule, chooser
from monitor.errors import ConfigError
from tests.capture.capture_on_disk import EVAL, TRAIN


def chosen(schedule: Schedule, steps: range, clock: Callable[[], float] = float) -> list[int]:
    choose = chooser(schedule, clock)
    return [step for step in steps if choose(TRAIN, step)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), list(range(12))),
        (Schedule(every=5), [0, 5, 10]),
        (Schedule(every=0), []),
        (Schedule(steps=((2, 3), (7, 7))), [2, 3, 7]),
        (Schedule(steps=((9, None),)), [9, 10, 11]),
        (Schedule(steps=((2, 9),), every=4), [4, 8]),
        (Schedule(first=3), [0, 1, 2]),
        (Schedule(modes=frozenset({EVAL})), []),
        (Schedule(modes=frozenset({TRAIN, EVAL}), first=1), [0]),
    ],
)
def test_a_schedule_chooses(schedule: Schedule, expected: list[int]) -> None:
    assert chosen(schedule, range(12)) == expected


def test_the_first_steps_of_a_resumed_run_are_those_that_come_first() -> None:
    assert chosen(Schedule(first=2), range(5000, 5010)) == [5000, 5001]


def test_each_mode_has_its_own_first_steps() -> None:
    choose = chooser(Schedule(first=1), float)
    assert [choose(TRAIN, 4), choose(EVAL, 9), choose(TRAIN, 5), choose(EVAL, 10)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(start_time=103.0, duration_seconds=2.0), [3, 4]),
        (Schedule(start_time=109.0), [9, 10, 11]),
        (Schedule(duration_seconds=3.0), [0, 1, 2]),
        (Schedule(start_time=105.0, first=1), [5]),
    ],
)
def test_a_window_of_time_is_half_open(schedule: Schedule, expected: list[int]) -> None:
    times = iter(range(100, 112))
    choose = chooser(schedule, lambda: float(next(times)))
    assert [step for step in range(12) if choose(TRAIN, step)] == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": -1}, "every is -1"),
        ({"first": 0}, "first is 0"),
        ({"duration_seconds": 0.0}, "duration_seconds is 0"),
        ({"duration_seconds": float("nan")}, "duration_seconds is nan"),
        ({"steps": ((5, 4),)}, "the range of steps 5-4 is empty"),
        ({"steps": ((-1, 4),)}, "the range of steps -1-4 is empty"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(**settings)  # type: ignore[arg-type]
