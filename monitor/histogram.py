"""A histogram of lengths with fixed bounds. Pure."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0, 300.0, 600.0,
)  # fmt: skip


class Histogram:
    """Counts by upper bound; the last count is for what is longer than all bounds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one length, not below 0."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """How many lengths were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return how many are at most each bound, and last how many there are."""
        total, result = 0, []
        for count in self.counts:
            total += count
            result.append(total)
        return result
