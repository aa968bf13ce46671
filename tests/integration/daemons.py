"""Daemons for tests: one inside the test's own loop, one as a child process that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio

from monitor.client import AsyncClient, Client, open_client
from monitor.config import load_settings
from monitor.daemon import Daemon, run_daemon
from monitor.errors import SourceUnavailable
from monitor.settings import Settings

DEADLINE_SECONDS = 20.0


def settings_for(folder: Path, source: Path | str, **more: object) -> Settings:
    """Settings with everything below one short folder; `section__key=value` sets more."""
    overrides: dict[str, object] = {
        "source.path": str(source),
        "daemon.state_dir": str(folder / "state"),
        "daemon.socket": str(folder / "s.sock"),
        "daemon.listen": "127.0.0.1:0",
        "metrics.refresh_seconds": 0.1,
    }
    overrides |= {key.replace("__", "."): value for key, value in more.items()}
    return load_settings(None, {}, overrides)


@asynccontextmanager
async def daemon_inside(settings: Settings) -> AsyncIterator[tuple[Daemon, AsyncClient]]:
    """Run a daemon in this loop."""
    started: list[Daemon] = []
    ready, done = anyio.Event(), anyio.Event()

    async def beside(daemon: Daemon) -> None:
        started.append(daemon)
        ready.set()
        await done.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run_daemon(settings, beside=beside))
        with anyio.fail_after(DEADLINE_SECONDS):
            await ready.wait()
        try:
            async with open_client(settings.daemon_socket) as client:
                yield started[0], client
        finally:
            done.set()


@contextmanager
def daemon_child(
    folder: Path,
    source: Path | str | None,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "monitor"),
    python: Sequence[str] = (sys.executable,),
    stderr: int = subprocess.PIPE,
) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    """Run a daemon as a child process; it is killed at the end if it still runs.

    Args:
        variables: more for its environment. program: what Python runs. python: what runs Python.
    """
    socket = folder / "s.sock"
    command = [
        *python,
        *program,
        "run",
        *([] if source is None else [str(source)]),
        "--state-dir",
        str(folder / "state"),
    ]
    command += ["--socket", str(socket), "--listen", "127.0.0.1:0", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(variables or {})}
    process = subprocess.Popen(command, env=environment, stderr=stderr)
    try:
        client = Client(socket)
        wait_for_answer(process, client)
        yield process, client
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def wait_for_answer(process: subprocess.Popen[bytes], client: Client) -> None:
    """Wait until a child answers."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            client.status()
        except SourceUnavailable:
            time.sleep(0.01)  # there is no event to wait for: the socket appears when it appears
        else:
            return
    raise AssertionError(f"the daemon did not answer; exit code {process.poll()}")


async def until(client: AsyncClient, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask for the status until something holds."""
    with anyio.fail_after(DEADLINE_SECONDS):
        while True:
            status = await client.status()
            if holds(status):
                return status
            await anyio.sleep(0.01)


def stop(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> float:
    """Ask a child to stop; returns how many seconds it took."""
    started = time.monotonic()
    process.send_signal(number)
    process.wait(timeout=DEADLINE_SECONDS)
    return time.monotonic() - started
