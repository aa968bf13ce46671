"""The verb `doctor`: looks at everything around a daemon and says what to do. Changes nothing.

Each check is a function that gives findings; what it needs from a running daemon it asks over the socket.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import click
from rich.console import Console

from monitor.api.schema import ProfileAnswer
from monitor.client import Client
from monitor.clock_skew import Seen, find_skews
from monitor.errors import ConfigError, QueryError, RequestFailed, SourceUnavailable
from monitor.logs import printable
from monitor.s3_url import parse_s3_url
from monitor.settings import Settings, SourceSettings
from monitor.sources.walk import Walker
from monitor.status_command import size

Verdict: TypeAlias = Literal["ok", "warning", "problem"]

LEAST_DISK_BYTES = 64 * 2**20
ROOMY_DISK_BYTES = 2**30
LEAST_FILES = 256
ROOMY_FILES = 1024
ANSWER_SECONDS = 10.0
SPANS_A_NODE = 300
MOST_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at; `advice` says what to do now, "" where all is well."""

    what: str
    verdict: Verdict
    text: str
    advice: str = ""


Check: TypeAlias = Callable[[], Iterator[Finding]]


def run_doctor(settings: Settings, socket: Path) -> bool:
    """Run all checks and print what they find; returns whether there is no problem.

    Args:
        socket: where a daemon is looked for.
    """
    spans: list[Seen] = []
    checks: list[tuple[str, Check]] = [("settings", lambda: check_settings(settings))]
    checks += [(f"source {each.path or each.jobs}", partial(check_source, each, spans)) for each in settings.source]
    checks += [
        ("state folder", lambda: check_state(settings.daemon_state_dir)),
        ("disk", lambda: check_disk(settings.daemon_state_dir)),
        ("socket", lambda: check_socket(settings.daemon_socket)),
        ("daemon", lambda: check_daemon(socket)),
        ("open files", check_open_files),
        ("clocks", lambda: check_clocks(socket, spans)),
    ]
    console = Console(stderr=True)
    verdicts: set[Verdict] = set()
    for name, check in checks:
        with console.status(f"{printable(name)} …"):  # on a terminal only
            findings = list(check())
        for finding in findings:
            verdicts.add(finding.verdict)
            click.echo(printable(f"{finding.verdict:<8} {finding.what}: {finding.text}"))
            if finding.advice:
                click.echo(printable(f"         → {finding.advice}"))
    return "problem" not in verdicts


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Settings were read; some may have old names, and something must be watched."""
    for remark in settings.deprecated:
        yield Finding(what="settings", verdict="warning", text=remark, advice="change it in the file or environment")
    if not settings.source:
        text = "nothing is watched"
        yield Finding(what="settings", verdict="warning", text=text, advice="name a PATH, or a [[source]] in the file")
    elif not settings.deprecated:
        yield Finding(what="settings", verdict="ok", text=f"{len(settings.source)} sources")


def check_source(source: SourceSettings, spans: list[Seen]) -> Iterator[Finding]:
    """A folder is there and can be read wholly; a bucket can be listed. Keeps a local folder's newest spans."""
    if source.type == "s3":
        yield anyio.run(check_bucket, source)
        return
    what = f"source {source.path}"
    walker = Walker(Path(source.path))
    found = 0
    for refs in walker.scan(time.monotonic(), everything=True):
        found += len(refs)
        for ref in refs[-SPANS_A_NODE:]:
            start, end = ref.span.start, ref.span.end
            node, step = ref.key.node, ref.span.start_step
            seen = (source.job, node, start.mode.word, start.phase.value, step, start.time_us / 1e6, end.time_us / 1e6)
            spans.append(Seen(*seen))
    user = f"user {os.geteuid()}"
    if not walker.available:
        advice = "nothing, if the job has not begun; else correct the path, or let this user enter the folders above it"
        yield Finding(what=what, verdict="warning", text=f"is not there, or {user} may not enter it", advice=advice)
    elif walker.unreadable:
        advice = f"let the daemon's user read it: setfacl -R -m u:USER:rX -m d:u:USER:rX {source.path}"
        yield Finding(what=what, verdict="problem", text=f"{walker.complaint()} by {user}", advice=advice)
    elif not found:
        advice = (
            "nothing, if the job has not begun; else check that it profiles, and that framework/ is below this folder"
        )
        yield Finding(what=what, verdict="warning", text="no profiles are below it", advice=advice)
    else:
        yield Finding(what=what, verdict="ok", text=f"can be read; {found} profiles")


async def check_bucket(source: SourceSettings) -> Finding:
    """List one key."""
    from monitor.sources.s3_client import Bucket, open_s3_client  # half a second: only who watches a bucket pays

    place = source.path or source.jobs
    url = parse_s3_url(place)
    prefix = url.prefix.partition("*")[0]
    what = f"source {place}"
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            async with open_s3_client(source.s3) as client:
                bucket = Bucket(client, url.bucket, requester_pays=source.requester_pays)
                page = await bucket.list_page(prefix, most=1)
    except TimeoutError:
        text, advice = f"no answer within {ANSWER_SECONDS:g} s", "check network, proxy, region and endpoint"
        return Finding(what=what, verdict="problem", text=text, advice=advice)
    except (RequestFailed, ConfigError) as error:
        advice = "check credentials, their right to s3:ListBucket, the bucket's name, region and endpoint"
        return Finding(what=what, verdict="problem", text=str(error), advice=advice)
    if not (page.objects or page.folders):
        advice = "nothing, if the job has not begun; else check the prefix"
        return Finding(what=what, verdict="warning", text="can be listed, and is empty", advice=advice)
    return Finding(what=what, verdict="ok", text="can be listed")


def check_state(folder: Path) -> Iterator[Finding]:
    """The state folder is this user's, and nobody else's; or it can be made."""
    what = f"state folder {folder}"
    try:
        found = folder.stat()
    except FileNotFoundError:
        above = nearest(folder)
        if os.access(above, os.W_OK | os.X_OK):
            yield Finding(what=what, verdict="ok", text="is made at the first start")
        else:
            text, advice = f"is not there, and {above} may not be written", "choose another with --state-dir"
            yield Finding(what=what, verdict="problem", text=text, advice=advice)
        return
    except OSError as error:
        advice = "run doctor as the daemon's user"
        yield Finding(what=what, verdict="problem", text=f"cannot be looked at: {error.strerror}", advice=advice)
        return
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        yield Finding(
            what=what, verdict="problem", text="is no folder", advice="move it, or choose another --state-dir"
        )
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        advice = "run doctor as the daemon's user, or give the folder to it"
        yield Finding(what=what, verdict="problem", text=f"user {os.geteuid()} may not write it", advice=advice)
    elif mode & 0o077:
        advice = f"chmod 0700 {folder}"
        yield Finding(what=what, verdict="warning", text=f"others may use it (mode {mode:04o})", advice=advice)
    else:
        yield Finding(what=what, verdict="ok", text=f"mode {mode:04o}, writable")


def check_disk(folder: Path) -> Iterator[Finding]:
    """There is room for the store."""
    free = shutil.disk_usage(nearest(folder)).free
    verdict: Verdict = "ok" if free >= ROOMY_DISK_BYTES else "warning" if free >= LEAST_DISK_BYTES else "problem"
    advice = "" if verdict == "ok" else "make room, or set store.retention_spans or store.retention_days"
    yield Finding(what="disk", verdict=verdict, text=f"{size(free)} are free for the state folder", advice=advice)


def check_socket(path: Path) -> Iterator[Finding]:
    """The socket can be made where it is to be."""
    what = f"socket {path}"
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            yield Finding(what=what, verdict="problem", text="something else is there", advice="move it away")
            return
    except FileNotFoundError:
        pass
    except OSError as error:
        advice = "join the group of the socket's folder, or run doctor as the daemon's user"
        yield Finding(what=what, verdict="warning", text=f"cannot be looked at: {error.strerror}", advice=advice)
        return
    if os.access(nearest(path.parent), os.W_OK | os.X_OK):
        yield Finding(what=what, verdict="ok", text="its folder may be written")
    else:
        text = f"{nearest(path.parent)} may not be written by user {os.geteuid()}"
        yield Finding(what=what, verdict="warning", text=text, advice="needed by `run` only: choose another --socket")


def check_daemon(socket: Path) -> Iterator[Finding]:
    """A daemon answers, and finds nothing wrong."""
    try:
        state = Client(socket, timeout_seconds=ANSWER_SECONDS).status()
    except SourceUnavailable as error:
        advice = "start one: phasewatch run PATH, or systemctl start phasewatch"
        yield Finding(what="daemon", verdict="warning", text=str(error).partition(": ")[0], advice=advice)
        return
    except QueryError as error:
        yield Finding(what="daemon", verdict="problem", text=str(error), advice="see its log; start it again")
        return
    for problem in state["problems"]:
        yield Finding(what="daemon", verdict="problem", text=problem, advice="phasewatch status says more")
    if not state["problems"]:
        yield Finding(what="daemon", verdict="ok", text=state["doing"])


def check_open_files() -> Iterator[Finding]:
    """A process of this user may open enough files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    verdict: Verdict = "ok" if soft >= ROOMY_FILES else "warning" if soft >= LEAST_FILES else "problem"
    advice = "" if verdict == "ok" else f"ulimit -n {ROOMY_FILES} before the start, LimitNOFILE= in a unit"
    yield Finding(what="open files", verdict=verdict, text=f"{soft} at the same time", advice=advice)


def check_clocks(socket: Path, spans: list[Seen]) -> Iterator[Finding]:
    """The nodes' clocks agree, by what a daemon has stored, or else by the folders that were looked at."""
    try:
        seen = newest_spans(socket)
    except (SourceUnavailable, QueryError):
        seen = []
    seen = seen or spans
    skews = find_skews(seen, time.time())
    for skew in skews:
        than = "the other nodes at equal steps" if skew.moments else "this machine's"
        way = "ahead of" if skew.seconds > 0 else "behind"
        text = f"the clock of node {skew.node} (job {skew.job}) is {abs(skew.seconds):.1f} s {way} {than}"
        advice = "start NTP or chrony there; ranges of time, and what is added up of them, mix up moments until then"
        yield Finding(what="clocks", verdict="warning", text=text, advice=advice)
    if not skews:
        nodes = len({(span.job, span.node) for span in seen})
        text = (
            f"{nodes} nodes agree"
            if nodes > 1
            else "nothing to compare"
            if not nodes
            else "one node, not in the future"
        )
        yield Finding(what="clocks", verdict="ok", text=text)


def newest_spans(socket: Path) -> list[Seen]:
    """Ask a daemon for the newest spans of each node."""
    client = Client(socket, timeout_seconds=ANSWER_SECONDS)
    spans: list[Seen] = []
    for row in client.nodes().nodes[:MOST_NODES]:
        words = {"job": row.job, "node": row.node, "framework": row.framework, "profiler": row.profiler}
        page = client.profiles(after=max(0, row.spans - SPANS_A_NODE), limit=SPANS_A_NODE, **words)
        spans += [seen_of(profile) for profile in page.profiles]
    return spans


def seen_of(row: ProfileAnswer) -> Seen:
    """Take what is compared from a row of the list of spans."""
    start, end = row.start_time_since_epoch_in_micros / 1e6, row.end_time_since_epoch_in_micros / 1e6
    return Seen(row.job, row.node_id, row.start_mode, row.start_phase, row.start_step, start, end)


def nearest(path: Path) -> Path:
    """Return the path, or the closest folder above it that is there."""
    return next((each for each in (path, *path.absolute().parents) if os.path.exists(each)), Path("/"))  # noqa: PTH110
