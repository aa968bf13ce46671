"""Steps counted by mode and marked on a capture: what the modules for frameworks share."""

from __future__ import annotations

import os
from collections.abc import Callable

from monitor.capture.recorder import Capture
from monitor.capture.settings import CaptureOptions, CaptureSettings
from monitor.spans import PythonProfileModes


class Steps:
    """Counts the steps of each mode. A copy, or one sent to another process, has a capture of its own there."""

    __slots__ = ("_next", "capture")

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._next: dict[PythonProfileModes, int] = {}

    def start(self, mode: PythonProfileModes, step: int | None = None) -> None:
        """Mark the start of a step; its number is the framework's, or else the next one of its mode."""
        number = self._next.get(mode, 0) if step is None else step
        self._next[mode] = number + 1
        self.capture.step_start(mode, number)

    def __reduce__(self) -> tuple[Callable[[CaptureSettings], Steps], tuple[CaptureSettings]]:
        """Pickle the settings alone: files, threads and profilers stay where they are."""
        return steps_of, (self.capture.settings,)


def steps_of(settings: CaptureSettings) -> Steps:
    """Make what was pickled."""
    return Steps(Capture(settings=settings))


def begin(
    capture: Capture | None, base: str | os.PathLike[str] | None, options: CaptureOptions, framework: str
) -> Capture:
    """Return the capture that was given, or make one; the span before the first step begins here at the latest.

    Raises:
        ConfigError: a setting that cannot work.
    """
    if capture is None:
        if "PHASEWATCH_CAPTURE_FRAMEWORK" not in os.environ:
            options.setdefault("framework", framework)
        capture = Capture(base, **options)
    capture.start()
    return capture
