"""Waiting for a long intake, with a word on how far it is. Writes to standard error only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from time import monotonic

from monitor.analysis.loop_thread import ENDED
from monitor.errors import MonitorError

QUIET_SECONDS = 2.0
"""Nobody needs to be told of a wait that is shorter."""
TELL_SECONDS = 0.5


def wait_and_tell(waiting: Future[None], running: Future[None], progress: Callable[[], tuple[int, int]]) -> None:
    """Wait for a task; after two seconds say how many of how many profiles are read, and how fast.

    Where standard error is a terminal or a notebook the line is written over; elsewhere there is one at the end only.

    Args:
        running: the task that does the work; its end ends the wait too, and the caller has to look at it.

    Raises:
        MonitorError: the wait was ended from elsewhere. Whatever the task raises.
    """
    started, before, told = monotonic(), progress()[0], False
    timeout = QUIET_SECONDS
    try:
        while not wait((waiting, running), timeout, FIRST_COMPLETED).done:
            tell(before, progress(), monotonic() - started, end="")
            told, timeout = True, TELL_SECONDS
    except BaseException:
        waiting.cancel()  # Ctrl-C: nobody waits for it any more
        raise
    if told:
        tell(before, progress(), monotonic() - started, end="\n")
    if not waiting.done():
        waiting.cancel()
        return
    try:
        waiting.result()
    except CancelledError:
        raise MonitorError(ENDED) from None


def tell(before: int, now: tuple[int, int], seconds: float, *, end: str) -> None:
    """Write the line, or nothing where it could not be written over."""
    if sys.stderr is None:  # closed by whoever started the program
        return
    live = sys.stderr.isatty() or "ipykernel" in sys.modules
    if live or end:
        done, total = now
        rate = (done - before) / seconds if seconds > 0 else 0.0
        line = f"read {done:,} of {total:,} profiles in {seconds:.0f} s ({rate:,.0f} a second)"
        sys.stderr.write(f"{chr(13) if live else ''}{line}{end}")
        sys.stderr.flush()
