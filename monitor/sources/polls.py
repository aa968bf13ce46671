"""What a source remembers of its polls: how many, how the last one went, the last error and when. Reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict


class PollFacts(TypedDict):
    """The fields of `SourceStatistics` that tell of polls."""

    polls: int
    failed_polls: int
    last_poll_seconds: float
    last_good_poll_timestamp: float
    last_error: str
    last_error_timestamp: float


def no_facts() -> PollFacts:
    """Return what is so before the first poll."""
    return PollFacts(
        polls=0,
        failed_polls=0,
        last_poll_seconds=0.0,
        last_good_poll_timestamp=0.0,
        last_error="",
        last_error_timestamp=0.0,
    )


@dataclass(slots=True)
class Polls:
    """The polls of one source.

    Args:
        wall_clock: seconds since the epoch.
    """

    wall_clock: Callable[[], float] = time.time
    facts: PollFacts = field(default_factory=no_facts)

    def note(self, seconds: float, error: str = "") -> None:
        """Note a poll that took so long, and what it could not read."""
        self.facts["polls"] += 1
        self.facts["last_poll_seconds"] = seconds
        if error:
            self.facts["failed_polls"] += 1
            self.facts["last_error"], self.facts["last_error_timestamp"] = error, self.wall_clock()
        else:
            self.facts["last_good_poll_timestamp"] = self.wall_clock()
