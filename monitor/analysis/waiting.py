"""Waiting for a long intake, with a word on how far it is. Writes to standard error only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, TimeoutError
from time import monotonic

from monitor.analysis.loop_thread import ENDED
from monitor.errors import MonitorError

QUIET_SECONDS = 2.0
"""Nobody needs to be told of a wait that is shorter."""
TELL_SECONDS = 0.5


def wait_and_tell(waiting: Future[None], running: Future[None], progress: Callable[[], tuple[int, int]]) -> None:
    """Wait for a task; after two seconds say how many of how many profiles are read, and how fast.

    Args:
        running: the task without which the wait would not end; its failure is raised.

    Where standard error is a terminal or a notebook the line is written over; elsewhere there is one at the end only.
    """
    started, told = monotonic(), False
    timeout = QUIET_SECONDS
    while True:
        try:
            waiting.result(timeout)
        except TimeoutError:
            if waiting.done():
                raise
            if running.done():
                waiting.cancel()
                running.result()
                raise RuntimeError("the reading of profiles has ended") from None
            told = tell(*progress(), monotonic() - started, end="")
            timeout = TELL_SECONDS
        except CancelledError:
            raise MonitorError(ENDED) from None
        else:
            break
    if told:
        tell(*progress(), monotonic() - started, end="\n")


def tell(done: int, total: int, seconds: float, *, end: str) -> bool:
    """Write the line."""
    live = sys.stderr.isatty() or "ipykernel" in sys.modules
    if live or end:
        rate = done / seconds if seconds > 0 else 0.0
        line = f"read {done:,} of {total:,} profiles in {seconds:.0f} s ({rate:,.0f} a second)"
        sys.stderr.write(f"{chr(13) if live else ''}{line}{end}")
        sys.stderr.flush()
    return True
