"""Floods: more files, nodes, spans, functions and longer names than any job should have. What the daemon needs then.

    .cache/test/bin/python -m tests.benchmarks.flood [files] [nodes] [spans] [functions] [names]
        [--scale S] [--folder DIR]

Prints figures beside their limits. At --scale 1: 10,000 files a second for a minute, 10,000 nodes, 1,000,000 spans,
100,000 functions. A scale below 1 has so much fewer (and a shorter flood of files); the limits stay.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import psutil

from monitor.client import Client
from monitor.errors import MonitorError
from tests.benchmarks.measure import cpu_seconds, limit, quantile, say
from tests.integration.corpora import FIRST_US, node_folder
from tests.integration.daemons import daemon_child, stop
from tests.integration.hostile_names import names, profile_of

FILES_A_SECOND = 10_000
FLOOD_SECONDS = 60
NODES = 10_000
SPANS = 1_000_000
FUNCTIONS = 100_000
FUNCTIONS_A_FILE = 500
PATIENCE_SECONDS = 1_800
SMALL = profile_of([("train.py", line, f"step_{line}") for line in range(8)])


def span_name(place: int) -> str:
    """Name one of very many spans."""
    at = FIRST_US + place * 1000
    return f"train-{place}-stepstart-{at}_train-{place}-forwardpassend-{at + 500.5}"


def leave(base: Path, node: str, first: int, last: int, data: bytes = SMALL) -> None:
    """Leave spans as quickly as it goes."""
    folder = node_folder(base, node)
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(first, last):
        span = folder / span_name(place)
        span.mkdir()
        with open(span / "python_stats", "wb", buffering=0) as file:
            file.write(data)


def flood(base: Path, seconds: float, rate: float, written: Synchronized[int]) -> None:
    """Leave spans at a rate, or as quickly as it goes, for so long."""
    started, place = time.monotonic(), 0
    while (now := time.monotonic() - started) < seconds:
        due = int(now * rate)
        upto = min(max(place, due), place + 500)
        leave(base, f"{place // 20_000}-flood", place, upto)
        place = upto
        written.value = place
        if place >= due:
            time.sleep(0.002)


@dataclass(slots=True)
class Watch:
    """Asks and looks while something goes on; says the worst that it saw."""

    process: psutil.Process
    client: Client
    folder: Path
    rss_bytes: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    scrapes: list[float] = field(default_factory=list)
    queries: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look once a second until stopped."""
        while not self._stop.wait(1.0):
            self.rss_bytes.append(self.process.memory_info().rss)
            self.files.append(self.process.num_fds())
            self.threads.append(self.process.num_threads())
            self._time(self.scrapes, lambda: self.client.raw("/metrics"))
            self._time(self.queries, lambda: self.client.step(100, 200, limit=50))
            self._time(self.queries, lambda: self.client.job_phases(limit=50))

    def _time(self, taken: list[float], ask: Callable[[], object]) -> None:
        started = time.monotonic()
        try:
            ask()
        except MonitorError as error:
            self.errors.append(str(error)[:100])
        taken.append(time.monotonic() - started)

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def report(self, most_mb: float) -> None:
        """Print all figures."""
        limit("main process, resident at most", max(self.rss_bytes) / 1e6, most_mb, "MB")
        limit("open files at most", max(self.files), 200, "")
        limit("threads at most", max(self.threads), 80, "")
        limit("a scrape, 99th percentile", quantile(self.scrapes, 0.99), 1.0, "s")
        limit("a query, 99th percentile", quantile(self.queries, 0.99), 1.0, "s")
        scrape, query = statistics.median(self.scrapes), statistics.median(self.queries)
        say(f"  medians: scrape {scrape * 1e3:.0f} ms, query {query * 1e3:.0f} ms")
        size = sum(path.stat().st_size for path in (self.folder / "state").iterdir())
        say(f"  store: {size / 1e6:.0f} MB; questions refused: {sorted(set(self.errors)) or 'none'}")


@contextmanager
def watched(folder: Path, base: Path, *arguments: str) -> Iterator[tuple[psutil.Process, Client, Watch]]:
    """Run a daemon that is watched."""
    with daemon_child(folder, base, *arguments) as (child, client):
        threading.Thread(target=child.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        process = psutil.Process(child.pid)
        watch = Watch(process, client, folder)
        thread = threading.Thread(target=watch.run)
        thread.start()
        try:
            yield process, client, watch
        finally:
            watch.stop()
            thread.join()
            stop(child)


def settle(client: Client, spans: int) -> float:
    """Wait until so many spans are stored; returns how long it took."""
    started = time.monotonic()
    while (has := client.status()["profiles"]) < spans:
        if time.monotonic() - started > PATIENCE_SECONDS:
            say(f"  NOT ALL: {has} of {spans} spans")
            break
        time.sleep(0.25)
    return time.monotonic() - started


def account(client: Client) -> None:
    """Say what the daemon itself says about what it passed over."""
    status = client.status()
    told = {key: status["ingest"][key] for key in ("waiting", "retrying", "set_aside", "failures")}
    say(f"  it tells: {told}, {status['watchers']['dropped']} events dropped for slow readers")


def measure_files(folder: Path, scale: float) -> None:
    """A flood of files."""
    base, seconds = folder / "profiles", FLOOD_SECONDS * scale
    base.mkdir()
    written = multiprocessing.Value("q", 0)
    with watched(folder, base) as (process, client, watch):
        writer = multiprocessing.Process(target=flood, args=(base, seconds, FILES_A_SECOND, written))
        before, started = cpu_seconds(process), time.monotonic()
        writer.start()
        writer.join()
        taken = time.monotonic() - started
        count = written.value
        say(f"files: {count} in {taken:.0f} s, {count / taken:.0f} a second ({FILES_A_SECOND} wanted)")
        say(f"  the daemon and its decoders used {(cpu_seconds(process) - before) / taken:.2f} of a core meanwhile")
        say(f"  it was through {settle(client, count):.0f} s after the last one")
        account(client)
        watch.report(400)


def measure_nodes(folder: Path, scale: float) -> None:
    """Very many nodes."""
    base, count = folder / "profiles", int(NODES * scale)
    for node in range(count):
        leave(base, f"{node}-host-{node}", 0, 3)
    with watched(folder, base) as (_, client, watch):
        say(f"nodes: {count} with 3 spans each, read in {settle(client, count * 3):.0f} s")
        time.sleep(10)  # the page holds them all by then
        say(f"  /metrics: {len(client.raw('/metrics')[1]) / 1e6:.1f} MB")
        account(client)
        watch.report(800)


def measure_spans(folder: Path, scale: float) -> None:
    """Very many spans."""
    base, count = folder / "profiles", int(SPANS * scale)
    for node in range(10):
        leave(base, f"{node}-host", node * count // 10, (node + 1) * count // 10)
    with watched(folder, base) as (process, client, watch):
        say(f"spans: {count}, read in {settle(client, count):.0f} s")
        account(client)
        watch.report(700)
        before = cpu_seconds(process)
        time.sleep(20)
        limit("nothing new, share of a core", (cpu_seconds(process) - before) / 20 * 100, 5, "%")
    started = time.monotonic()
    with daemon_child(folder, base) as (child, client):
        threading.Thread(target=child.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        say(f"  after a restart it answers in {time.monotonic() - started:.1f} s; {client.status()['profiles']} spans")
        stop(child)


def measure_functions(folder: Path, scale: float) -> None:
    """Very many functions."""
    base, count = folder / "profiles", int(FUNCTIONS * scale)
    files = count // FUNCTIONS_A_FILE
    for place in range(files):
        first = place * FUNCTIONS_A_FILE
        functions = [
            (f"pkg/module_{line % 97}.py", line, f"function_{line}") for line in range(first, first + FUNCTIONS_A_FILE)
        ]
        leave(base, "0-host", place, place + 1, profile_of(functions))
    with watched(folder, base) as (_, client, watch):
        say(f"functions: {count} in {files} files, read in {settle(client, files):.0f} s")
        say(f"  it knows {client.status()['functions']} of them")
        time.sleep(5)
        page = client.raw("/metrics")[1].decode()
        shown = sum(line.startswith("phasewatch_function_self_seconds_total{") for line in page.splitlines())
        say(f"  /metrics shows {shown} of them as series, (other) included")
        account(client)
        watch.report(500)


def measure_names(folder: Path, scale: float) -> None:
    """Names of 10,000 characters and of every class of characters."""
    base, files = folder / "profiles", max(1, int(1_000 * scale))
    functions = [(name, line, name) for line, name in enumerate(names())]
    for place in range(files):
        long = [("/".join([f"{place}"] * 100), line, f"{place}-{line}-" + "n" * 10_000) for line in range(10)]
        leave(base, "0-host", place, place + 1, profile_of([*functions, *long]))
    with watched(folder, base) as (_, client, watch):
        say(f"names: {files} files with 10 names each of 10,000 characters, read in {settle(client, files):.0f} s")
        time.sleep(5)
        account(client)
        watch.report(500)


PARTS: dict[str, Callable[[Path, float], None]] = {
    "files": measure_files,
    "nodes": measure_nodes,
    "spans": measure_spans,
    "functions": measure_functions,
    "names": measure_names,
}


def main(arguments: Sequence[str]) -> None:
    """Measure what is named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.flood")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=None, help="where to make files; several GB")
    chosen = parser.parse_args(arguments)
    for name in chosen.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix="pw-", dir=chosen.folder))
        try:
            PARTS[name](folder, chosen.scale)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
