"""Stands in for `smdebug.profiler.python_profile_utils`: modes, phases, profilers and timers."""

from __future__ import annotations

import os
from enum import Enum

from monitor.compat.profiler_constants import CPROFILE_NAME, PYINSTRUMENT_NAME
from monitor.errors import ArgumentError, LayoutError
from monitor.spans import PythonProfileModes, StepPhase

__all__ = [
    "CPROFILE_NAME",
    "PYINSTRUMENT_NAME",
    "PythonProfileModes",
    "PythonProfilerName",
    "StepPhase",
    "cProfileTimer",
    "cpu_time",
    "mode_keys_to_python_profile_mode",
    "off_cpu_time",
    "python_profile_mode_to_str",
    "str_to_python_profile_mode",
    "total_time",
]


class PythonProfilerName(Enum):
    """The profilers."""

    CPROFILE = "cprofile"
    PYINSTRUMENT = "pyinstrument"


class cProfileTimer(Enum):
    """What cProfile measures; of `os.times()`, so in steps of 10 ms on most systems."""

    TOTAL_TIME = "total_time"
    CPU_TIME = "cpu_time"
    OFF_CPU_TIME = "off_cpu_time"
    DEFAULT = "default"


def str_to_python_profile_mode(mode_str: str) -> PythonProfileModes:
    """Read a mode's word on disk."""
    try:
        return PythonProfileModes.from_word(mode_str)
    except LayoutError as error:
        raise ArgumentError("mode_str", mode_str, error.reason) from None


def python_profile_mode_to_str(mode: PythonProfileModes) -> str:
    """Return a mode's word on disk."""
    try:
        return PythonProfileModes(mode).word
    except ValueError:
        raise ArgumentError("mode", mode, "must be a member of PythonProfileModes") from None


def mode_keys_to_python_profile_mode(mode: Enum) -> PythonProfileModes:
    """Turn the original's ModeKeys, whose numbers are the same, into a mode."""
    return PythonProfileModes(mode.value)


def total_time() -> float:
    """Seconds since some moment, by the wall clock of `os.times()`."""
    return os.times().elapsed


def cpu_time() -> float:
    """Seconds of CPU that this process has used."""
    times = os.times()
    return times.system + times.user


def off_cpu_time() -> float:
    """Seconds that this process has waited; with several busy threads it runs backwards."""
    times = os.times()
    return times.elapsed - (times.system + times.user)
