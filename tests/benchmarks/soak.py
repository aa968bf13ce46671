"""A soak: files come in every state, the daemon is killed every few seconds, clients ask and scrape all the while.

    .cache/test/bin/python -m tests.benchmarks.soak [--minutes 30] [--seed N] [--folder DIR]

For four fifths of the time files are written and the daemon is killed, by kill -9 or by SIGTERM, and started again.
Then nothing is written and nobody is killed: memory, open files and threads must stay as they are while clients go on.
At the end the totals are held against those of a daemon that reads the same files once, in peace. Exits with 1 where
something is not as it should be.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from monitor.api.schema import TrainingPhasesAnswer
from monitor.client import Client
from monitor.layout import data_file
from tests.benchmarks.measure import quantile, say
from tests.benchmarks.soak_clients import Clients
from tests.benchmarks.soak_files import Writer, Written
from tests.integration.corpora import node_folder, write_span
from tests.integration.daemons import daemon_child, stop, wait_for_answer
from tests.integration.totals import assert_same

ASKING = 3
WRITING_SHARE = 0.8
EARLY_SHARE = 0.15
LIVES_SECONDS = (2.0, 8.0)
SETTLE_SECONDS = 180.0
SETTINGS = {"PHASEWATCH_INGEST_BROKEN_AFTER_SECONDS": "2", "PHASEWATCH_INGEST_RECHECK_SECONDS": "2"}
KILLED_WITH = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
MOST_GROWTH_BYTES = 8 * 2**20
MOST_GROWTH = 3
"""Of open files and threads between the start and the end of the quiet part."""
LONGEST_STOP_SECONDS = 6.0


@dataclass(slots=True, kw_only=True)
class Use:
    """What a daemon uses; decoders count as processes."""

    rss_bytes: int
    files: int
    threads: int
    children: int

    @classmethod
    def of(cls, process: psutil.Process) -> Use:
        """Look at a process."""
        return cls(
            rss_bytes=process.memory_info().rss,
            files=process.num_fds(),
            threads=process.num_threads(),
            children=len(process.children(recursive=True)),
        )

    def __str__(self) -> str:
        return f"{self.rss_bytes / 1e6:.0f} MB, {self.files} files, {self.threads} threads, {self.children} children"


@dataclass(slots=True)
class Soak:
    """The state of one soak."""

    folder: Path
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    starts: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def base(self) -> Path:
        """Where profiles are written."""
        return self.folder / "profiles"

    def live(self, log: Path) -> None:
        """Run a daemon and kill it: some seconds after it first answered, or now and then before it is up."""
        command = [sys.executable, "-m", "monitor", "run", str(self.base), "--state-dir", str(self.folder / "state")]
        command += ["--socket", str(self.folder / "s.sock"), "--listen", ""]
        number = self.chance.choice(KILLED_WITH)
        with log.open("ab") as out:
            process = subprocess.Popen(command, env={**os.environ, **SETTINGS}, stderr=out)
            if self.chance.random() < EARLY_SHARE:
                time.sleep(self.chance.uniform(0.2, 1.0))
            else:
                started = time.monotonic()
                wait_for_answer(process, Client(self.folder / "s.sock"))
                self.starts.append(time.monotonic() - started)
                time.sleep(self.chance.uniform(*LIVES_SECONDS))
            children = self.children_of(process)
            if process.poll() is not None:
                self.faults.append(f"the daemon ended by itself with code {process.returncode}")
                return
            taken = stop(process, number)
        self.kills[number.name] += 1
        if number is signal.SIGTERM and (
            process.returncode not in (0, -signal.SIGTERM) or taken > LONGEST_STOP_SECONDS
        ):
            self.faults.append(f"SIGTERM: exit code {process.returncode} after {taken:.1f} s")
        _, left = psutil.wait_procs(children, timeout=5)
        if left:
            self.faults.append(f"{len(left)} decoders lived on after {number.name}")

    def children_of(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """Return a daemon's decoders."""
        try:
            return psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def clean_pass(folder: Path, spans: list[Written], profilers: tuple[str, ...]) -> list[TrainingPhasesAnswer]:
    """Let a new daemon read spans once."""
    base = folder / "clean"
    for span in spans:
        write_span(node_folder(base, span.node, span.profiler), span.name, span.data, data_file(span.profiler))
    clean = folder / "c"
    clean.mkdir()
    with daemon_child(clean, base) as (process, client):
        threading.Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        return settled_totals(client, len(spans), profilers, process)


def settled_totals(
    client: Client, profiles: int, profilers: tuple[str, ...], process: subprocess.Popen[bytes]
) -> list[TrainingPhasesAnswer]:
    """Wait until so many profiles are stored, and ask for all totals."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while client.status()["profiles"] < profiles and time.monotonic() < deadline:
        time.sleep(0.1)
    answers = [client.training_phases(callers=True, profiler=profiler) for profiler in profilers]
    stop(process)
    return answers


def listed(client: Client) -> set[tuple[str, str]]:
    """Return (node, name) of all spans that the daemon has."""
    names: set[tuple[str, str]] = set()
    after: int | None = 0
    while after is not None:
        page = client.profiles(limit=10_000, after=after)
        names |= {(profile.node_id, profile.span) for profile in page.profiles}
        after = page.next
    return names


def wait_until_settled(client: Client, writer: Writer) -> None:
    """Wait until the daemon has all that is there and whole."""
    wanted = {
        (span.node, span.name) for span in writer.all if span.fate in ("whole", "halves", "mended", "deleted later")
    }
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        client.jobs(fresh=True)
        if wanted <= listed(client):
            return
        time.sleep(0.5)


def check_totals(soak: Soak, writer: Writer, mine: list[TrainingPhasesAnswer], stored: set[tuple[str, str]]) -> None:
    """Hold the totals against those of one clean pass over the same spans."""
    by_name = {(span.node, span.name): span for span in writer.all}
    sure = {key for key, span in by_name.items() if span.fate in ("whole", "halves", "mended", "deleted later")}
    never = {key for key, span in by_name.items() if span.fate in ("broken", "half and deleted")}
    if missing := sure - stored:
        soak.faults.append(f"{len(missing)} whole spans are missing, such as {by_name[min(missing)]}")
    if stored & never or not stored <= by_name.keys():
        soak.faults.append(f"{len(stored & never)} spans are stored that were never whole")
    expected = clean_pass(soak.folder, [by_name[key] for key in sorted(stored)], ("cprofile", "pyinstrument"))
    for one, other in zip(mine, expected, strict=True):
        try:
            assert_same(one, other)
        except AssertionError as error:
            soak.faults.append(f"totals differ from one clean pass: {str(error)[:500]}")
    undecided = sum(span.fate == "deleted" for key, span in by_name.items() if key in stored)
    say(
        f"  totals of {len(stored)} spans compared; {undecided} of them were deleted before anyone could know "
        "whether they were read"
    )


def quiet(soak: Soak, writer: Writer, writing: threading.Thread, seconds: float, hush: Callable[[], None]) -> None:
    """Let one daemon live while nothing changes; then compare totals.

    Args:
        hush: ends the clients, while there is still somebody to answer their last questions.
    """
    with daemon_child(soak.folder, soak.base, variables=SETTINGS) as (process, client):
        threading.Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        writing.join()  # it asks for what it may delete
        wait_until_settled(client, writer)
        watched = psutil.Process(process.pid)
        time.sleep(min(20.0, seconds / 4))  # caches fill
        first = Use.of(watched)
        time.sleep(seconds)
        last = Use.of(watched)
        say(f"  quiet part of {seconds:.0f} s: first {first}; last {last}")
        if last.rss_bytes - first.rss_bytes > MOST_GROWTH_BYTES:
            soak.faults.append("memory grew")
        if last.files - first.files > MOST_GROWTH or last.threads - first.threads > MOST_GROWTH:
            soak.faults.append("open files or threads grew")
        aside = sum(client.status()["ingest"]["set_aside"].values())
        broken = sum(span.fate == "broken" for span in writer.all)
        say(f"  {aside} files are set aside; {broken} were left broken")
        if aside != broken:
            soak.faults.append("not every broken file is set aside")
        hush()
        stored = listed(client)
        mine = settled_totals(client, len(stored), ("cprofile", "pyinstrument"), process)
    check_totals(soak, writer, mine, stored)


def check_clients(soak: Soak, clients: Clients) -> None:
    """Say how the clients fared."""
    share = clients.answered / max(1, clients.asked)
    say(
        f"  {clients.asked} questions, {share:.4%} answered (99.9 % wanted), {clients.retried} at a second try or later"
    )
    say(
        f"  median {statistics.median(clients.seconds) * 1e3:.0f} ms, 99th percentile "
        f"{quantile(clients.seconds, 0.99):.2f} s, longest {max(clients.seconds):.1f} s"
    )
    say(
        f"  {clients.scrapes} scrapes of {clients.series} series: {len(clients.fallen)} fell, "
        f"{len(clients.vanished)} vanished"
    )
    for what in (*clients.fallen[:5], *clients.vanished[:5]):
        soak.faults.append(f"series: {what}")
    if share < 0.999:
        soak.faults.append("too few questions were answered")
    for message, count in Counter(clients.refused).most_common(5):
        say(f"  refused {count} times: {message}")


def run(soak: Soak, seconds: float) -> None:
    """Soak, and say what came of it."""
    log = soak.folder / "daemon.log"
    clients = Clients(soak.folder / "s.sock", random.Random(soak.chance.random()))
    writer = Writer(soak.base, random.Random(soak.chance.random()), clients.is_stored)
    soak.base.mkdir()
    writing = threading.Thread(target=writer.run)
    asking = [threading.Thread(target=target) for target in (*[clients.run] * ASKING, clients.scrape)]

    def hush() -> None:
        clients.stop()
        for thread in asking:
            thread.join()

    started = time.monotonic()
    for thread in (writing, *asking):
        thread.start()
    try:
        while time.monotonic() - started < seconds * WRITING_SHARE:
            soak.live(log)
        writer.stop()
        say(f"after {(time.monotonic() - started) / 60:.1f} minutes: {dict(soak.kills)}; files: {dict(writer.counts)}")
        say(
            f"  from start to first answer: median {quantile(soak.starts, 0.5):.1f} s, longest {max(soak.starts):.1f} s"
        )
        quiet(soak, writer, writing, seconds * (1 - WRITING_SHARE), hush)
    finally:
        writer.stop()
        hush()
        writing.join()
    check_clients(soak, clients)
    check_log(soak, log)
    say(f"  left in the state folder: {sorted(path.name for path in (soak.folder / 'state').iterdir())}")


def check_log(soak: Soak, log: Path) -> None:
    """Look for what a daemon must never say."""
    text = log.read_text(errors="replace")
    if "Traceback" in text:
        soak.faults.append(f"a traceback in {log}: {text[text.index('Traceback') :][:1500]}")
    say(f"  the daemons logged {text.count(chr(10))} lines, {len(text) / 1e6:.1f} MB")


def main(arguments: list[str]) -> int:
    """Soak for so long; returns 1 where something was not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="an empty folder; kept")
    chosen = parser.parse_args(arguments)
    seed = chosen.seed if chosen.seed is not None else random.randrange(2**32)
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="pw-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"soaking for {chosen.minutes:g} minutes in {folder}, seed {seed}")
    soak = Soak(folder, random.Random(seed))
    started = time.monotonic()
    run(soak, chosen.minutes * 60)
    for fault in soak.faults:
        say(f"FAULT: {fault}")
    say(f"{(time.monotonic() - started) / 60:.1f} minutes, {sum(soak.kills.values())} kills, {len(soak.faults)} faults")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
