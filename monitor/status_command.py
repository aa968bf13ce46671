"""The verb `status`: the daemon's state for people, problems first. Asks the daemon; judges nothing itself."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from monitor.client import Client
from monitor.logs import printable
from monitor.show import when

MOST_FILES = 10
MOST_PHASES = 5
BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

State = Mapping[str, Any]


def run_status(socket: Path, output: str) -> bool:
    """Ask and print; returns whether all is well.

    Raises:
        SourceUnavailable: no daemon answers.
    """
    state = Client(socket).status()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if output == "json":
        click.echo(json.dumps(state))
    else:
        for line in lines_of(state):
            click.echo(printable(line))
    return not state["problems"]


def lines_of(state: State) -> Iterable[str]:
    """Write the state down."""
    yield from (f"problem: {problem}" for problem in state["problems"])
    if not state["problems"]:
        yield "all is well"
    yield f"now:     {state['doing']}"
    yield f"daemon:  phasewatch {state['version']}, process {state['pid']}, up {duration(state['uptime_seconds'])}"
    memory = state["memory"]
    yield f"memory:  {size(memory['resident_bytes'])}, at most {size(memory['peak_resident_bytes'])} so far"
    store = state["store"]
    yield f"store:   {state['profiles']} profiles, {state['profiles_with_rows']} with rows, {size(store['size_bytes'])}"
    yield f"failed:  {failures(state)}"
    for source in state["sources"]:
        yield from source_lines(source)
    yield from budget_lines(state["budget"])
    yield from file_lines("set aside", state["set_aside"], sum(state["ingest"]["set_aside"].values()))
    yield from file_lines("tried again", state["retrying"], state["ingest"]["retrying"])


def source_lines(source: State) -> Iterable[str]:
    """Show one source."""
    yield f"source:  {source['path']}, job {source['job']}"
    newest, good = source["newest_age_seconds"], source["last_good_poll_age_seconds"]
    yield f"           newest profile {ago(newest)}, last good poll {ago(good)}"
    counts = (source["waiting"], source["retrying"], source["set_aside"])
    yield "           {} files waiting, {} tried again, {} set aside".format(*counts)
    if source["last_error"]:
        yield f"           last error at {when(source['last_error_timestamp'])}: {source['last_error']}"


def budget_lines(budget: State) -> Iterable[str]:
    """Show how much of the budget of series is used, the fullest phases first."""
    limit = budget["limit"]
    yield f"series:  {budget['series']} of functions; {budget['full_phases']} phases use all {limit} that they may"
    for phase in budget["phases"][:MOST_PHASES]:
        who = f"{phase['job']} {phase['node']} {phase['profiler']}, {phase['start_mode']} → {phase['end_mode']}"
        yield f"           {phase['series']} of {limit}: {who} ({phase['job_phase']})"


def file_lines(what: str, files: Sequence[State], total: int) -> Iterable[str]:
    """Show files in trouble."""
    shown = files[:MOST_FILES]
    for file in shown:
        yield f"{what}: {file['path']}: {file['reason']}"
    if total > len(shown):
        yield f"{what}: {total - len(shown)} more; --format json and `/v1/status` tell of the first {len(files)}"


def failures(state: State) -> str:
    """Say how often what failed since the start."""
    ingest, decode = state["ingest"], state["decode"]
    counts = {
        "attempts at files": sum(ingest["failures"].values()),
        "transactions": ingest["store_failures"],
        "decoders crashed": decode["crashes"],
        "decoders too slow": decode["timeouts"],
        "polls": sum(source["failed_polls"] for source in state["sources"]),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing since the start"


def ago(seconds: float | None) -> str:
    """Show an age."""
    return "never" if seconds is None else f"{duration(max(seconds, 0.0))} ago"


def duration(seconds: float) -> str:
    """Show a length of time in its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if not hours:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"


def size(count: float) -> str:
    """Show a number of bytes."""
    unit = 0
    while count >= 1024 and unit < len(BYTE_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {BYTE_UNITS[unit]}" if unit == 0 else f"{count:.1f} {BYTE_UNITS[unit]}"
