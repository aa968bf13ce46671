"""Which steps are profiled: every Nth, ranges, a window of time, the first ones, some modes. Owns the rule and the
little state that "first" needs; knows no profiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monitor.errors import ConfigError
from monitor.spans import PythonProfileModes


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which steps to profile; a step must meet all conditions.

    Attributes:
        every: steps that it divides; 0 for none, until a trigger asks.
        steps: (first, last) ranges, both ends included; last None is without end; no range at all is all steps.
        first: only so many steps of each mode, counted from the first one that lies in the window.
        start_time: seconds since the epoch; None is the first step.
        duration_seconds: length of the window; None is without end.
        modes: None is all.
    """

    every: int = 1
    steps: tuple[tuple[int, int | None], ...] = ()
    first: int | None = None
    start_time: float | None = None
    duration_seconds: float | None = None
    modes: frozenset[PythonProfileModes] | None = None

    def __post_init__(self) -> None:
        """Refuse what can never choose a step by mistake.

        Raises:
            ConfigError: says which value.
        """
        if self.every < 0:
            raise ConfigError(f"every is {self.every}: use 0 for no step or a positive number")
        if self.first is not None and self.first < 1:
            raise ConfigError(f"first is {self.first}: use at least 1, or every=0 for no step")
        if self.duration_seconds is not None and not self.duration_seconds > 0:
            raise ConfigError(f"duration_seconds is {self.duration_seconds}: it must be greater than 0")
        for start, end in self.steps:
            if start < 0 or (end is not None and end < start):
                raise ConfigError(f"the range of steps {start}-{end} is empty: use FIRST-LAST with 0 <= FIRST <= LAST")

    @property
    def simple(self) -> bool:
        """Whether `every` alone decides."""
        return not (self.steps or self.modes) and self.first is self.start_time is self.duration_seconds is None


class Chooser:
    """Asks a schedule about steps as they come."""

    __slots__ = ("_clock", "_first_steps", "_schedule", "_start_time")

    def __init__(self, schedule: Schedule, clock: Callable[[], float]) -> None:
        self._schedule = schedule
        self._clock = clock
        self._start_time = schedule.start_time
        self._first_steps: dict[PythonProfileModes, int] = {}

    def __call__(self, mode: PythonProfileModes, step: int) -> bool:
        """Tell whether a step that starts now is to be profiled."""
        schedule = self._schedule
        if not schedule.every or (schedule.modes is not None and mode not in schedule.modes):
            return False
        if not self._in_window():
            return False
        if schedule.first is not None and step >= self._first_steps.setdefault(mode, step) + schedule.first:
            return False
        return step % schedule.every == 0 and (not schedule.steps or inside(schedule.steps, step))

    def _in_window(self) -> bool:
        schedule = self._schedule
        if schedule.start_time is schedule.duration_seconds is None:
            return True
        now = self._clock()
        if self._start_time is None:
            self._start_time = now
        length = schedule.duration_seconds
        return self._start_time <= now and (length is None or now < self._start_time + length)


def chooser(schedule: Schedule, clock: Callable[[], float]) -> Callable[[PythonProfileModes, int], bool]:
    """Make the cheapest function that decides: it runs at every step of a training that is hardly ever profiled."""
    every = schedule.every
    if schedule.simple:
        return (lambda _mode, step: step % every == 0) if every else (lambda _mode, _step: False)
    return Chooser(schedule, clock)


def inside(ranges: tuple[tuple[int, int | None], ...], step: int) -> bool:
    """Tell whether one of the ranges holds a step."""
    return any(start <= step and (end is None or step <= end) for start, end in ranges)
