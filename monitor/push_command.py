"""The verb `push`: takes the page of each job from a daemon, or from a folder read once, and leaves it somewhere.

A push may be the only one of its job, so it waits until the page holds every profile that there is.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import click

from monitor.client import Client
from monitor.config import load_settings
from monitor.daemon import Daemon, run_daemon
from monitor.errors import ConfigError, QueryError
from monitor.logs import configure_logging
from monitor.pushing import Place

LONGEST_WAIT_SECONDS = 30.0
LOOK_EVERY_SECONDS = 0.05
MOST_TROUBLES_SHOWN = 10
PROFILES = re.compile(rb"^phasewatch_profiles_total\{.*\} (\S+)$", re.MULTILINE)
PHASES_WITH_FUNCTIONS = re.compile(
    rb'^phasewatch_function_self_seconds_total\{.*,function="\(other\)"\} ', re.MULTILINE
)


def run_push(
    path: str | None, socket: Path, place: Place, *, job: str | None, delete: bool, environ: Mapping[str, str]
) -> None:
    """Leave pages, or remove them.

    Args:
        job: only this one; for a folder, its name.

    Raises:
        ConfigError: there is no such folder. QueryError: there is nothing to push, or it is refused.
        SourceUnavailable: nobody answers.
    """
    if delete and path is not None:
        raise ConfigError("--delete reads no folder: leave out PATH and name the job with --job")
    if delete:
        jobs = [job] if job is not None else [row.job for row in Client(socket).jobs().jobs]
        for each in jobs:
            click.echo(f"deleted {each} from {place.delete(each)}", err=True)
    elif path is None:
        push_from_daemon(socket, place, job)
    else:
        push_from_folder(path, place, job, environ)


def push_from_daemon(socket: Path, place: Place, job: str | None) -> None:
    """Push what a daemon knows."""
    client = Client(socket)
    rows = [row for row in client.jobs(fresh=True).jobs if job in (None, row.job)]
    if not rows:
        raise QueryError("there are no profiles to push" + (f" of job {job!r}" if job else ""))
    for row in rows:
        page = whole_page(client, row.job, row.spans)
        click.echo(f"pushed {row.job}, {row.spans} profiles, to {place.put(row.job, page)}", err=True)
    status = client.status()
    for trouble in [*status["set_aside"], *status["retrying"]][:MOST_TROUBLES_SHOWN]:
        click.echo(f"not in it: {trouble['path']} {trouble['reason']}", err=True)


def push_from_folder(path: str, place: Place, job: str | None, environ: Mapping[str, str]) -> None:
    """Read a folder once with a daemon of its own, and push what it holds."""
    if "://" not in path and not Path(path).is_dir():
        raise ConfigError(f"there is no folder {path}")
    configure_logging("warning", "auto")
    with tempfile.TemporaryDirectory(prefix="phasewatch-push-") as folder:
        socket = Path(folder, "phasewatch.sock")
        overrides: dict[str, object] = {
            "source.path": path,
            "daemon.state_dir": str(Path(folder, "state")),
            "daemon.socket": str(socket),
            "daemon.listen": "",
            "metrics.refresh_seconds": 0.1,
            "log.level": "warning",
            "ship.path": "",
        }
        settings = load_settings(None, environ, overrides | ({"job": job} if job else {}))

        async def beside(daemon: Daemon) -> None:
            await daemon.refresh()  # as long as it takes: a question over the socket would be cut off
            await anyio.to_thread.run_sync(partial(push_from_daemon, socket, place, None))

        anyio.run(partial(run_daemon, settings, beside=beside))


def whole_page(client: Client, job: str, spans: int) -> bytes:
    """Wait until a job's page holds so many profiles, and the functions of all of its phases."""
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while True:
        page = client.raw("/metrics", job=job)[1]
        phases = PROFILES.findall(page)
        if sum(map(float, phases)) >= spans and len(PHASES_WITH_FUNCTIONS.findall(page)) == len(phases):
            return page
        if time.monotonic() > deadline:
            raise QueryError(
                f"the series of job {job!r} are not complete after {LONGEST_WAIT_SECONDS:g} s: the daemon has much to "
                "do, or the job's series have ended there"
            )
        time.sleep(LOOK_EVERY_SECONDS)
