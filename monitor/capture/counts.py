"""What became of the spans of a capture, in numbers. A record; counts nothing itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatistics:
    """What became of the spans so far.

    Attributes:
        written: on disk.
        waiting: recorded and not yet written.
        dropped: recorded, and thrown away because the queue was full.
        failed: recorded, and lost because it could not be rendered or written.
        refused: not recorded, because another profiler was active or the profiler failed to start.
        interrupted: lost, because another profiler cut in or the profiler failed to stop.
        own_seconds: what capture itself took of the training thread's time, without the profiler.
        stopped: why capture has stopped itself, None while it has not.
    """

    written: int
    written_bytes: int
    waiting: int
    dropped: int
    failed: int
    refused: int
    interrupted: int
    own_seconds: float
    last_failure: str | None
    stopped: str | None

    @property
    def lost(self) -> int:
        """Spans that will never be on disk."""
        return self.dropped + self.failed + self.refused + self.interrupted
