"""What people see on a terminal while the daemon loads and catches up. Shows; changes nothing.

Without a terminal the daemon's own log lines, one an interval, say the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from monitor.daemon import Daemon

LOOK_SECONDS = 0.2
WORTH_SHOWING_FILES = 500
"""Fewer files are taken in before anybody could read a bar."""


@contextmanager
def loading_bar() -> Iterator[Callable[[int, int], None]]:
    """Give a function that shows how much of the store is loaded."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with new_bar() as bar:
        task = bar.add_task("loading the store", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=done < total)

        yield show


async def show_catching_up(daemon: Daemon) -> None:
    """Show a bar while files from before are taken in, until cancelled."""
    if not sys.stderr.isatty():
        return
    with new_bar() as bar:
        task = bar.add_task("catching up", total=None, visible=False)
        while True:
            parts = daemon.parts()
            numbers = parts.ingest.statistics()
            waiting = numbers.waiting
            total = sum(source.statistics().spans_seen for source in parts.sources)
            behind = waiting > 0 and total > WORTH_SHOWING_FILES and not all(parts.first_polls)
            bar.update(task, completed=total - waiting, total=total, visible=behind or waiting > WORTH_SHOWING_FILES)
            await anyio.sleep(LOOK_SECONDS)


def new_bar() -> Progress:
    """Make a bar that vanishes when it is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
