"""What capture may cost: its own work on the training thread as a share of the time. Owns the measuring; the profiler
that the user chose is not counted, for its price was the user's choice."""

from __future__ import annotations

from time import perf_counter


class OverheadBudget:
    """Adds up own work over windows of time.

    Args:
        share: of the time; 0 is no limit.
        window_seconds: a verdict needs so much time, so that a slow first step or a burst ends nothing.
    """

    __slots__ = ("_began", "_last", "_own_seconds", "_share", "_started", "_window_seconds", "total_seconds")

    def __init__(self, share: float, window_seconds: float) -> None:
        self._share = share
        self._window_seconds = window_seconds
        self._started: float | None = None
        self._own_seconds = 0.0
        self.total_seconds = 0.0
        self._began = self._last = -1.0

    @property
    def ratio(self) -> float | None:
        """Own work as a share of all the time so far, to a thousandth; None before the first window is over."""
        passed = self._last - self._began
        return round(self.total_seconds / passed, 3) if passed >= self._window_seconds else None

    def note(self, own_seconds: float, now: float) -> str | None:
        """Count the work of one transition that ended now (perf_counter); returns the verdict if it is too much."""
        self.total_seconds += own_seconds
        if self._began < 0:
            self._began = now - own_seconds
        self._last = now
        if not self._share:
            return None
        if self._started is None:
            self._started = now - own_seconds
        self._own_seconds += own_seconds
        elapsed = now - self._started
        if elapsed < self._window_seconds:
            return None
        spent, self._own_seconds, self._started = self._own_seconds, 0.0, now
        if spent <= self._share * elapsed:
            return None
        return (
            f"its own work took {spent / elapsed:.1%} of the last {elapsed:.1f} s of training, more than "
            f"overhead_share = {self._share:g}; profile fewer steps (every=), or allow more"
        )


def now() -> float:
    """Read the clock of this module."""
    return perf_counter()
