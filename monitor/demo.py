"""`phasewatch demo`: a real training run in a child process, a real daemon on its files, and a live table of phases."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from monitor.answers import PhaseStats, Scope
from monitor.config import load_settings
from monitor.daemon import Daemon, run_daemon
from monitor.profiles.names import function_label
from monitor.tables import StatsTable, sort_table

REFRESH_SECONDS = 0.5
TOP_FUNCTIONS = 3
ENDLESS_STEPS = 10**9
STOP_SECONDS = 5.0


async def run_demo(*, steps: int | None, profiler: str, listen: str, delay_seconds: float) -> None:
    """Run the demo until its training ends or somebody stops it.

    Args:
        steps: of training; None for no end.
        delay_seconds: between steps.

    Raises:
        ConfigError: the address cannot be used.
    """
    console = Console()
    with tempfile.TemporaryDirectory(prefix="phasewatch-demo-") as folder:
        base = Path(folder, "profiler")
        settings = load_settings(
            None,
            {},
            {
                "job": "demo",
                "source.path": str(base),
                "daemon.state_dir": str(Path(folder, "state")),
                "daemon.socket": str(Path(folder, "phasewatch.sock")),
                "daemon.listen": listen,
            },
        )
        arguments = ["--steps", str(steps or ENDLESS_STEPS), "--profiler", profiler, "--delay", str(delay_seconds)]

        async def beside(daemon: Daemon) -> None:
            async with training(base, arguments) as process:
                await show(console, daemon, process, Scope(profiler=profiler))

        await run_daemon(settings, beside=beside)


@asynccontextmanager
async def training(base: Path, arguments: Sequence[str]) -> AsyncIterator[Process]:
    """Run the training script while the block lasts; it is asked to end, and ended if it does not."""
    process = await anyio.open_process(
        [sys.executable, "-m", "monitor.demo_training", str(base), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=None,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
                with anyio.move_on_after(STOP_SECONDS):
                    await process.wait()
            if process.returncode is None:
                process.kill()
            await process.wait()


async def show(console: Console, daemon: Daemon, process: Process, scope: Scope) -> None:
    """Print the addresses, then a table that lives as long as the training, then a summary."""
    parts = daemon.parts()
    console.print(f"training        {parts.sources[0].name}", highlight=False)
    console.print(f"query socket    {parts.server.socket}", highlight=False, soft_wrap=True)
    console.print(f"metrics         http://{parts.server.address}/metrics", highlight=False)
    console.print(
        f"try             phasewatch query --socket {parts.server.socket} training-phases\n",
        highlight=False,
        soft_wrap=True,
    )
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    if live is not None:
        live.start()
    try:
        while process.returncode is None:
            with anyio.move_on_after(REFRESH_SECONDS):
                await process.wait()
            if live is not None:
                live.update(phase_table(await daemon.queries.training_phases(scope, callers=False)), refresh=True)
    finally:
        if live is not None:
            live.stop()
    await daemon.refresh()
    phases = await daemon.queries.training_phases(scope, callers=False)
    console.print(phase_table(phases))
    stored = sum(phase.table.spans for phase in phases)
    aside = sum(daemon.parts().ingest.statistics().set_aside.values())
    console.print(
        f"the training ended with exit code {process.returncode}; {stored} profiles stored, {aside} set aside"
    )


def phase_table(phases: Sequence[PhaseStats]) -> Table:
    """Show what takes the time in each training phase."""
    table = Table(title="Where the time goes, by training phase", title_justify="left")
    table.add_column("phase", no_wrap=True)
    table.add_column("spans", justify="right")
    table.add_column("self s", justify="right")
    table.add_column("share", justify="right")
    table.add_column("function", overflow="fold")
    for phase in phases:
        add_phase(table, phase)
    return table


def add_phase(table: Table, phase: PhaseStats) -> None:
    """Add the functions of one phase with the most self time."""
    whole = float(phase.table.measures.self_seconds.sum())
    top: StatsTable = sort_table(phase.table, "self", TOP_FUNCTIONS)
    names = [function_label(*top.names[function]) for function in top.function.tolist()]
    start = "" if phase.start_mode is None else phase.start_mode.word
    end = "" if phase.end_mode is None else phase.end_mode.word
    heads = [(f"{start} → {end}", str(phase.table.spans))] + [("", "")] * (TOP_FUNCTIONS - 1)
    for (title, spans), name, seconds in zip(heads, names, top.measures.self_seconds.tolist(), strict=False):
        share = f"{100 * seconds / whole:.0f} %" if whole > 0 else "–"
        table.add_row(title, spans, f"{seconds:.3f}", share, Text(name))
