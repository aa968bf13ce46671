"""The clocks that cProfile may count with. Owns their names; the three of the original keep its names and meanings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

TimerName: TypeAlias = Literal["wall", "total_time", "cpu_time", "off_cpu_time", "thread_cpu_time"]
TIMER_NAMES: tuple[TimerName, ...] = get_args(TimerName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A clock for cProfile.

    Attributes:
        read: gives the time; None for cProfile's own wall clock, which costs no call.
        unit_seconds: the length of one unit where the clock counts in whole numbers, 0 where it gives seconds.
    """

    read: Callable[[], float] | None = None
    unit_seconds: float = 0.0


def total_time() -> float:
    """Seconds of wall time, in the 10 ms steps of times(2)."""
    return os.times().elapsed


def cpu_time() -> float:
    """Seconds of CPU time of all threads of the process, in the 10 ms steps of times(2)."""
    times = os.times()
    return times.system + times.user


def off_cpu_time() -> float:
    """Wall time less CPU time; falls, and gives negative spans, where several threads compute."""
    times = os.times()
    return times.elapsed - (times.system + times.user)


TIMERS: dict[TimerName, Timer] = {
    "wall": Timer(),
    "total_time": Timer(read=total_time),
    "cpu_time": Timer(read=cpu_time),
    "off_cpu_time": Timer(read=off_cpu_time),
    # Of this thread alone and in nanoseconds: what a function of the training thread computed, and not what it waited.
    "thread_cpu_time": Timer(read=time.thread_time_ns, unit_seconds=1e-9),
}
