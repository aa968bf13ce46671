"""Answers for people at a terminal: plain tables with units. Asks the daemon; knows no selection rules."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.api.schema import (
    JobPhasesAnswer,
    JobsAnswer,
    NodesAnswer,
    ProfilesAnswer,
    StatsAnswer,
    TrainingPhasesAnswer,
)
from monitor.client import Client
from monitor.logs import printable
from monitor.profiles.names import function_label
from monitor.tables import FunctionRow

TABLE_ROWS = 20
WIDEST = 200


def show_answer(socket: Path, name: str, path: str, output: str, words: Mapping[str, Any]) -> None:
    """Ask and print."""
    client = Client(socket)
    if output != "table":
        asked = dict(words) if name in LISTS else {**words, "format": output}
        _, body = client.raw(path, **asked)
        sys.stdout.buffer.write(body + (b"\n" if output == "json" else b""))
        sys.stdout.buffer.flush()
        return
    if name not in LISTS:
        words = {"limit": TABLE_ROWS, **words}
    _, body = client.raw(path, **words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(width=None if sys.stdout.isatty() else WIDEST, highlight=False)
    for table in (LISTS | PHASES).get(name, stats_tables)(body):
        console.print(table)


def stats_tables(body: bytes) -> Iterable[Table]:
    """Show one set of functions."""
    answer = msgspec.json.decode(body, type=StatsAnswer)
    return [function_table("", answer)]


def training_phase_tables(body: bytes) -> Iterable[Table]:
    """Show one table a training phase."""
    answer = msgspec.json.decode(body, type=TrainingPhasesAnswer)
    return [function_table(f"{phase.start_mode} → {phase.end_mode}: ", phase) for phase in answer.phases]


def job_phase_tables(body: bytes) -> Iterable[Table]:
    """Show one table a job phase."""
    answer = msgspec.json.decode(body, type=JobPhasesAnswer)
    return [function_table(f"{phase.job_phase}: ", phase) for phase in answer.phases]


def function_table(title: str, answer: StatsAnswer) -> Table:
    """Show functions with their times."""
    length = (
        "" if answer.from_ is None or answer.to is None else f", {answer.to - answer.from_:.3f} s from first to last"
    )
    table = Table(title=f"{title}{answer.spans} spans{length}", title_justify="left")
    for heading in ("self s", "cumulative s", "calls", "primitive"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("function", overflow="fold")
    for row in answer.functions:
        table.add_row(*function_cells(row))
    return table


def function_cells(row: FunctionRow) -> Sequence[str | Text]:
    """Show one function."""
    counts = ("–" if count is None else str(count) for count in (row.calls, row.primitive_calls))
    return f"{row.self_seconds:.6f}", f"{row.cumulative_seconds:.6f}", *counts, Text(function_label(*row.key))


def profile_tables(body: bytes) -> Iterable[Table]:
    """Show spans."""
    answer = msgspec.json.decode(body, type=ProfilesAnswer)
    table = plain_table("start", "seconds", "job", "node", "profiler", "from", "to")
    for row in answer.profiles:
        seconds = (row.end_time_since_epoch_in_micros - row.start_time_since_epoch_in_micros) / 1e6
        start = f"{row.start_mode} {row.start_step} {row.start_phase}"
        end = f"{row.end_mode} {'∞' if row.end_step is None else row.end_step} {row.end_phase}"
        clock = when(row.start_time_since_epoch_in_micros / 1e6)
        table.add_row(*texts(clock, f"{seconds:.6f}", row.job, row.node_id, row.profiler_name, start, end))
    if answer.next is not None:
        table.caption = f"more with --after {answer.next}"
    return [table]


def node_tables(body: bytes) -> Iterable[Table]:
    """Show nodes."""
    table = plain_table("job", "framework", "profiler", "node", "spans", "first", "last", "last step")
    for row in msgspec.json.decode(body, type=NodesAnswer).nodes:
        step = "–" if row.last_step is None else str(row.last_step)
        cells = (row.job, row.framework, row.profiler, row.node, str(row.spans), when(row.from_), when(row.to), step)
        table.add_row(*texts(*cells))
    return [table]


def job_tables(body: bytes) -> Iterable[Table]:
    """Show jobs."""
    table = plain_table("job", "spans", "nodes", "first", "last")
    for row in msgspec.json.decode(body, type=JobsAnswer).jobs:
        table.add_row(*texts(row.job, str(row.spans), str(row.nodes), when(row.from_), when(row.to)))
    return [table]


def status_tables(body: bytes) -> Iterable[Table]:
    """Show the daemon's state, one line a number."""
    table = plain_table("what", "value")
    for key, value in flattened(msgspec.json.decode(body)):
        table.add_row(*texts(key, str(value)))
    return [table]


LISTS: dict[str, Callable[[bytes], Iterable[Table]]] = {
    "profiles": profile_tables,
    "nodes": node_tables,
    "jobs": job_tables,
    "status": status_tables,
}
PHASES: dict[str, Callable[[bytes], Iterable[Table]]] = {
    "training-phases": training_phase_tables,
    "job-phases": job_phase_tables,
}


def flattened(value: object, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Walk a nested answer."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flattened(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from flattened(inner, f"{prefix}[{place}]")
    else:
        yield prefix, value


def plain_table(*headings: str) -> Table:
    """Make a table."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def texts(*cells: str) -> list[Text]:
    """Make cells whose text is taken as it is, whatever a file's name holds."""
    return [Text(printable(cell)) for cell in cells]


def when(seconds: float) -> str:
    """Show a time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s"
