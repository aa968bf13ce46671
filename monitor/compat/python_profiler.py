"""Stands in for `smdebug.profiler.python_profiler`: the writers, with the original's constructors and calls.

Each call writes at once, on the thread that calls it, as the original does. New code should use monitor.capture, which
writes beside training and survives other profilers.
"""

from __future__ import annotations

import cProfile
import os
import time
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from monitor.capture.nodes import default_node
from monitor.capture.snapshots import Files, files_of, pack_cprofile, pack_pyinstrument
from monitor.compat.core import FRAMEWORK
from monitor.compat.profiler_constants import (
    CONVERT_TO_MICROSECS,
    CPROFILE_NAME,
    CPROFILE_STATS_FILENAME,
    PYINSTRUMENT_HTML_FILENAME,
    PYINSTRUMENT_JSON_FILENAME,
    PYINSTRUMENT_NAME,
    PYTHON_PROFILING_START_STEP_DEFAULT,
)
from monitor.compat.python_profile_utils import (
    cProfileTimer,
    cpu_time,
    off_cpu_time,
    python_profile_mode_to_str,
    total_time,
)
from monitor.errors import ArgumentError
from monitor.layout import SpanKey, format_path
from monitor.spans import Moment, PythonProfileModes, StepPhase, format_span_name

if TYPE_CHECKING:
    from pyinstrument import Profiler

__all__ = [
    "CONVERT_TO_MICROSECS",
    "CPROFILE_NAME",
    "CPROFILE_STATS_FILENAME",
    "FRAMEWORK",
    "PYINSTRUMENT_HTML_FILENAME",
    "PYINSTRUMENT_JSON_FILENAME",
    "PYINSTRUMENT_NAME",
    "PYTHON_PROFILING_START_STEP_DEFAULT",
    "PyinstrumentPythonProfiler",
    "PythonProfileModes",
    "PythonProfiler",
    "cProfileDefaultPythonProfiler",
    "cProfilePythonProfiler",
    "cProfileTimer",
    "cpu_time",
    "off_cpu_time",
    "python_profile_mode_to_str",
    "total_time",
]

NO_STEP = "*"


class PythonProfilingConfig(Protocol):
    """What of the original's configuration decides on a writer."""

    profiler_name: str
    cprofile_timer: cProfileTimer


class ProfilerConfig(Protocol):
    """What of the original's configuration decides on a writer."""

    local_path: str
    python_profiling_config: PythonProfilingConfig


class PythonProfiler:
    """Writes one span folder for each pair of start and stop.

    Args:
        base_folder: gets `framework/…`.
        framework: a member of FRAMEWORK; its value names a folder.
    """

    _name: ClassVar[str] = ""

    def __init__(self, base_folder: str | Path, framework: Enum) -> None:
        self._base_folder = str(base_folder)
        self._framework = framework
        self._start: Moment | None = None

    def start_profiling(
        self,
        start_phase: StepPhase,
        start_mode: PythonProfileModes = PythonProfileModes.PRE_STEP_ZERO,
        start_step: int | str = NO_STEP,
    ) -> None:
        """Begin a span. One that is under way is lost, as in the original."""
        start = moment(start_mode, start_step, start_phase)
        if self._start is not None:
            self._disable_profiler()
        self._start = start
        self._enable_profiler()

    def stop_profiling(
        self,
        end_phase: StepPhase,
        end_mode: PythonProfileModes = PythonProfileModes.POST_HOOK_CLOSE,
        end_step: int | str = NO_STEP,
    ) -> None:
        """End the span and write it; nothing happens where none is under way.

        Raises:
            OSError: the folder cannot be written; the profiler is off all the same.
        """
        if self._start is None:
            return
        start, self._start = self._start, None
        self._disable_profiler()
        name = format_span_name(start, moment(end_mode, end_step, end_phase))
        key = SpanKey(framework=str(self._framework.value), profiler=self._name, node=default_node(), span=name)
        folder = Path(format_path(self._base_folder, key)).parent
        folder.mkdir(parents=True, exist_ok=True)
        for file_name, data in self._files().items():
            written = folder / f".{file_name}"
            written.write_bytes(data)
            written.replace(folder / file_name)

    @staticmethod
    def get_python_profiler(profiler_config: ProfilerConfig, framework: Enum) -> PythonProfiler:
        """Choose the writer that a configuration asks for."""
        config, base = profiler_config.python_profiling_config, profiler_config.local_path
        if config.profiler_name != cProfilePythonProfiler._name:
            return PyinstrumentPythonProfiler(base, framework)
        if config.cprofile_timer == cProfileTimer.DEFAULT:
            return cProfileDefaultPythonProfiler(base, framework)
        return cProfilePythonProfiler(base, framework, config.cprofile_timer)

    def _enable_profiler(self) -> None:
        raise NotImplementedError

    def _disable_profiler(self) -> None:
        raise NotImplementedError

    def _files(self) -> Files:
        raise NotImplementedError


class cProfilePythonProfiler(PythonProfiler):
    """Writes spans of cProfile.

    Args:
        cprofile_timer: what is measured; see cProfileTimer. DEFAULT, or its word, is total time.
    """

    _name = "cprofile"
    timer_name_to_function: ClassVar[Mapping[cProfileTimer, Callable[[], float]]] = {
        cProfileTimer.TOTAL_TIME: total_time,
        cProfileTimer.CPU_TIME: cpu_time,
        cProfileTimer.OFF_CPU_TIME: off_cpu_time,
    }

    def __init__(self, base_folder: str | Path, framework: Enum, cprofile_timer: cProfileTimer | str) -> None:
        super().__init__(base_folder, framework)
        try:
            timer = cProfileTimer(cprofile_timer)
        except ValueError:
            names = ", ".join(timer.name for timer in cProfileTimer)
            raise ArgumentError(
                "cprofile_timer", cprofile_timer, f"must be a member of cProfileTimer: {names}"
            ) from None
        self.cprofile_timer = self.timer_name_to_function.get(timer, total_time)
        self._profile = cProfile.Profile()

    def _enable_profiler(self) -> None:
        self._profile = cProfile.Profile(self.cprofile_timer)
        self._profile.enable()

    def _disable_profiler(self) -> None:
        self._profile.disable()

    def _files(self) -> Files:
        return files_of(pack_cprofile(self._profile))


class cProfileDefaultPythonProfiler(cProfilePythonProfiler):
    """Writes spans of cProfile where no timer was chosen: total time, but CPU time in step 10, off-CPU in step 11."""

    def __init__(self, base_folder: str | Path, framework: Enum) -> None:
        super().__init__(base_folder, framework, cProfileTimer.TOTAL_TIME)

    def _enable_profiler(self) -> None:
        step = self._start.step if self._start is not None else None
        place = -1 if step is None else step - PYTHON_PROFILING_START_STEP_DEFAULT
        self.cprofile_timer = {1: cpu_time, 2: off_cpu_time}.get(place, total_time)
        super()._enable_profiler()


class PyinstrumentPythonProfiler(PythonProfiler):
    """Writes spans of pyinstrument."""

    _name = "pyinstrument"

    def __init__(self, base_folder: str | Path, framework: Enum) -> None:
        super().__init__(base_folder, framework)
        self._profiler: Profiler | None = None

    def _enable_profiler(self) -> None:
        from pyinstrument import Profiler

        # Without async support, as monitor.capture: in a notebook start and stop may run in different contexts.
        self._profiler = Profiler(async_mode="disabled")
        self._profiler.start(target_description=f"process {os.getpid()}")

    def _disable_profiler(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()

    def _files(self) -> Files:
        session = None if self._profiler is None else self._profiler.last_session
        return files_of(pack_pyinstrument(session)) if session is not None else {}


def moment(mode: PythonProfileModes, step: int | str, phase: StepPhase) -> Moment:
    """Describe one end of a span, now.

    Raises:
        ArgumentError: the original would write such a span, and no reader would find it.
    """
    try:
        number = None if step == NO_STEP else int(step)
    except (TypeError, ValueError):
        number = -1
    if number is not None and number < 0:
        raise ArgumentError("step", step, "must be a whole number, 0 or more")
    try:
        known = StepPhase(phase.value if isinstance(phase, Enum) else phase)
        return Moment(PythonProfileModes(mode), number, known, time.time() * 1e6)
    except ValueError:
        raise ArgumentError("phase", phase, "must be a member of StepPhase") from None
