"""One profiler object per span: start, stop, and what takes apart what was recorded. Owns the peace with profilers that
are not ours: never replaces an active one, never switches one off that it can leave on."""

from __future__ import annotations

import cProfile
import sys
from functools import partial
from typing import Protocol

from monitor.capture.snapshots import Pack, ProfilerName, pack_cprofile, pack_pyinstrument
from monitor.capture.timers import TIMERS, TimerName
from monitor.errors import ConfigError

SHARED_STACK = sys.version_info >= (3, 12)
"""From 3.12 cProfile records the calls of all threads on one stack: Python code that runs in another thread while a
span is profiled falsifies the span. Measured with a writer thread: 1 span in 100 had wrong counts or callers."""

_left_on: list[cProfile.Profile] = []
"""Profiles that another profiler replaced and that must not be freed: freeing one switches off whatever is active. At
most one for each time that the other profiler is switched on inside a span and left on beyond it."""


class SpanProfiler(Protocol):
    """Profiles one span on the thread that calls it."""

    def start(self) -> bool:
        """Begin; False where another profiler is active, which is then left alone."""

    def stop(self) -> Pack | None:
        """End; returns what takes it apart, safe to call on any thread; None where another profiler cut in."""


class CProfileSpan:
    """One span under cProfile."""

    __slots__ = ("_profile",)

    def __init__(self, timer: TimerName = "wall") -> None:
        clock = TIMERS[timer]
        read = clock.read
        self._profile = cProfile.Profile() if read is None else cProfile.Profile(read, clock.unit_seconds)

    def start(self) -> bool:
        # Up to 3.11 enable() silently replaces an active profiler, from 3.12 it refuses.
        if not SHARED_STACK and sys.getprofile() is not None:
            return False
        try:
            self._profile.enable()
        except (ValueError, RuntimeError):
            return False
        return True

    def stop(self) -> Pack | None:
        if not SHARED_STACK:
            active: object = sys.getprofile()
            if active is not self._profile:
                self._give_way(active)
                return None
        self._profile.disable()
        return partial(pack_cprofile, self._profile)

    def _give_way(self, active: object) -> None:
        if active is None:
            self._profile.disable()
        else:
            _left_on.append(self._profile)


class PyinstrumentSpan:
    """One span under pyinstrument."""

    __slots__ = ("_hook", "_profiler")

    def __init__(self, interval_seconds: float = 0.001) -> None:
        from pyinstrument import Profiler

        # Without async support: it keeps the running profiler in a context variable, and a notebook may start a span in
        # one context and stop it in another, after which every later start would be refused.
        self._profiler = Profiler(interval=interval_seconds, async_mode="disabled")
        self._hook: object = None

    def start(self) -> bool:
        if sys.getprofile() is not None:
            return False
        # The default description is the file and line of this call, which says nothing about the training script.
        self._profiler.start(target_description="phasewatch capture")
        self._hook = sys.getprofile()
        return True

    def stop(self) -> Pack | None:
        active = sys.getprofile()
        session = self._profiler.stop()
        if active is self._hook:
            return partial(pack_pyinstrument, session)
        hand_back(active)
        return None


def check_profiler(name: ProfilerName) -> None:
    """Import what a profiler needs: now, not inside the first span.

    Raises:
        ConfigError: pyinstrument is not installed.
    """
    if name == "pyinstrument":
        try:
            import pyinstrument  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"profiler pyinstrument cannot be imported ({error}): pip install pyinstrument"
            ) from error


def new_profiler(name: ProfilerName, timer: TimerName, interval_seconds: float) -> SpanProfiler:
    """Make what profiles the next span."""
    return CProfileSpan(timer) if name == "cprofile" else PyinstrumentSpan(interval_seconds)


def hand_back(active: object) -> None:
    """Switch a profiler on again that stopping ours switched off; one written in C other than cProfile cannot be."""
    if isinstance(active, cProfile.Profile):
        active.enable()
    elif callable(active):
        sys.setprofile(active)
