"""One profiler object per span: start, stop, and turning what was recorded into the files of the span folder. Owns the
peace with profilers that are not ours: never replaces an active one, never switches one off that it can leave on."""

from __future__ import annotations

import cProfile
import marshal
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from monitor.capture.rendering import RenderingProcess
from monitor.capture.timers import TIMERS, TimerName
from monitor.errors import ConfigError
from monitor.layout import data_file

if TYPE_CHECKING:
    from pyinstrument.session import Session

ProfilerName: TypeAlias = Literal["cprofile", "pyinstrument"]
Files: TypeAlias = Mapping[str, bytes]
Render: TypeAlias = Callable[[], Files]
Label: TypeAlias = tuple[str, int, str]
Numbers: TypeAlias = tuple[int, int, float, float]

SHARED_STACK = sys.version_info >= (3, 12)
"""From 3.12 cProfile records the calls of all threads on one stack: Python code that runs in another thread while a
span is profiled falsifies the span. Measured with a writer thread: 1 span in 100 had wrong counts or callers."""

MARSHAL_VERSION = 4
"""The newest one that every Python from 3.4 can read, and the one the original writes."""

renderer = RenderingProcess()
"""One for all captures of this process; a forked child makes its own."""
os.register_at_fork(after_in_child=renderer.forget)

_left_on: list[cProfile.Profile] = []
"""Profiles that another profiler replaced and that must not be freed: freeing one switches off whatever is active. At
most one for each time that the other profiler is switched on inside a span and left on beyond it."""


class SpanProfiler(Protocol):
    """Profiles one span on the thread that calls it."""

    def start(self) -> bool:
        """Begin; False where another profiler is active, which is then left alone."""

    def stop(self) -> Render | None:
        """End; returns what makes the files, safe to call on any thread; None where another profiler cut in."""


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

    def stop(self) -> Render | None:
        if not SHARED_STACK:
            active: object = sys.getprofile()
            if active is not self._profile:
                self._give_way(active)
                return None
        self._profile.disable()
        return partial(cprofile_files, self._profile)

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

    def stop(self) -> Render | None:
        active = sys.getprofile()
        session = self._profiler.stop()
        if active is self._hook:
            return partial(pyinstrument_files, session)
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


def cprofile_files(profile: cProfile.Profile) -> Files:
    """Render a stopped profile as the original does: a marshalled pstats dictionary."""
    return {data_file("cprofile"): marshal.dumps(pstats_dictionary(profile), MARSHAL_VERSION)}


def pstats_dictionary(profile: cProfile.Profile) -> dict[Label, tuple[int, int, float, float, dict[Label, Numbers]]]:
    """Build what Profile.create_stats builds, but from a profile that is already off, so on any thread.

    Code objects with one label (two lambdas on a line) are summed, where create_stats keeps only the last one. No
    functions are called for each entry: this runs beside the training, and takes turns with it.
    """
    entries = profile.getstats()
    labels: list[Label] = []
    stats: dict[Label, tuple[int, int, float, float, dict[Label, Numbers]]] = {}
    for code, count, recursive, total, inline, _ in entries:
        label = ("~", 0, code) if isinstance(code, str) else (code.co_filename, code.co_firstlineno, code.co_name)
        labels.append(label)
        known = stats.get(label)
        if known is None:
            stats[label] = (count - recursive, count, inline, total, {})
        else:
            stats[label] = (*added(known[:4], (count - recursive, count, inline, total)), known[4])
    for label, entry in zip(labels, entries, strict=True):
        for code, count, recursive, total, inline in entry.calls or ():
            callee = stats.get(
                ("~", 0, code) if isinstance(code, str) else (code.co_filename, code.co_firstlineno, code.co_name)
            )
            if callee is not None:
                callers = callee[4]
                # In a caller's tuple all calls come before the primitive ones: Python writes it so.
                numbers = (count, count - recursive, inline, total)
                callers[label] = added(callers[label], numbers) if label in callers else numbers
    return stats


def added(one: Numbers, other: Numbers) -> Numbers:
    """Add two counts and two times."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def pyinstrument_files(session: Session) -> Files:
    """Render a session."""
    return renderer.render(session)


def hand_back(active: object) -> None:
    """Switch a profiler on again that stopping ours switched off; one written in C other than cProfile cannot be."""
    if isinstance(active, cProfile.Profile):
        active.enable()
    elif callable(active):
        sys.setprofile(active)
