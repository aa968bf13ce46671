"""Measures the daemon against its rivals and limits, and prints ratios of one run.

    .cache/test/bin/python -m tests.benchmarks.measure [catch-up] [queries] [visible] [idle] [metrics] [scrape]
        [bucket] [bucket-visible]

Without names it runs all of them, about ten minutes on two cores. Machines are shared and noisy: read the ratios.
"""

from __future__ import annotations

import json
import marshal
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import psutil

from monitor.client import Client
from monitor.spans import format_span_name, parse_span_name
from tests.benchmarks.bucket import measure_bucket
from tests.benchmarks.bucket_visible import measure_bucket_visible
from tests.benchmarks.scrape import measure_scrape
from tests.integration.corpora import node_folder, write_span
from tests.integration.daemons import daemon_child, stop

HERE = Path(__file__).parent
SPANS_A_NODE = 1_500
NODES = 8
MANY_SPANS = 100_000


def oracle() -> str:
    """Return the interpreter that holds smdebug."""
    default = HERE.parents[1] / ".cache" / "oracle" / "bin" / "python"
    python = os.environ.get("PHASEWATCH_ORACLE_PYTHON", str(default))
    if not Path(python).exists():
        sys.exit("the original library is missing: run `bash tests/run` once, it makes .cache/oracle")
    return python


def say(text: str) -> None:
    print(text, flush=True)


def limit(name: str, value: float, most: float, unit: str) -> None:
    """Print one figure beside its limit."""
    verdict = "within" if value <= most else "OVER"
    say(f"  {name}: {value:.3g} {unit}; limit {most:g}, ratio {value / most:.2f}: {verdict}")


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def rival(what: str, folder: Path, count: int) -> float:
    """Run the original; returns seconds."""
    command = [oracle(), str(HERE / "add_with_pstats.py"), what, str(folder), str(count)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(answer)["seconds"])


@contextmanager
def real_corpus() -> Iterator[Path]:
    """Leave profiles of a run of several nodes, written by the original."""
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        base = Path(folder, "profiles")
        say(f"writing {NODES * SPANS_A_NODE} profiles with the original writer …")
        for node in range(NODES):
            script = str(HERE / "write_corpus.py")
            command = [oracle(), script, str(base), f"{node}-algo-{node}", str(SPANS_A_NODE)]
            subprocess.run(command, check=True, capture_output=True)
        yield base


def lengthen(base: Path, times: int) -> None:
    """Make a run longer: the same files again under the names of later steps."""
    for node in (base / "framework" / "pytorch" / "cprofile").iterdir():
        spans = [parse_span_name(path.name) for path in node.iterdir()]
        loop = [span for span in spans if span.job_phase == "training_loop"]
        steps = max(span.end_step for span in loop) + 1
        seconds = max(span.end.time_us for span in loop) - min(span.start.time_us for span in loop) + 1000.0
        for again in range(1, times):
            for span in loop:
                ends = [
                    moment._replace(
                        step=(moment.step or 0) + int(steps) * again, time_us=moment.time_us + seconds * again
                    )
                    for moment in (span.start, span.end)
                ]
                target = node / format_span_name(*ends)
                target.mkdir()
                os.link(node / span.name / "python_stats", target / "python_stats")


@contextmanager
def daemon(base: Path | None, *arguments: str) -> Iterator[tuple[psutil.Process, Client, Path]]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        with daemon_child(Path(folder), base, *arguments) as (process, client):
            threading.Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
            yield psutil.Process(process.pid), client, Path(folder)
            stop(process)


def wait_for(client: Client, profiles: int) -> None:
    deadline = time.monotonic() + 120
    while client.status()["profiles"] < profiles:
        if time.monotonic() > deadline:
            sys.exit(f"the daemon did not take in {profiles} profiles")
        time.sleep(0.02)


def measure_catch_up(base: Path) -> None:
    """Catching up against pstats.Stats.add and bare marshal.loads of the same files."""
    files = sorted(base.rglob("python_stats"))
    data = [path.read_bytes() for path in files]
    started = time.perf_counter()
    for content in data:
        marshal.loads(content)
    bare = time.perf_counter() - started
    adding = rival("add", base / "framework" / "pytorch" / "cprofile", len(files))
    size = sum(map(len, data))
    del data
    with (
        tempfile.TemporaryDirectory(prefix="pw-") as folder,
        daemon_child(Path(folder), base.parent / "gate") as (
            process,
            client,
        ),
    ):
        threading.Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        started = time.perf_counter()
        (base.parent / "gate").symlink_to(base)
        client.jobs(fresh=True)
        wait_for(client, len(files))
        taken = time.perf_counter() - started
        status = client.status()
        stop(process)
    say(
        f"catch-up: {len(files)} profiles, {size / 1e6:.0f} MB, {taken:.2f} s: {taken / len(files) * 1e6:.0f} µs a file"
    )
    say(f"  pstats.Stats.add takes {adding / taken:.1f} times as long (at least 5 wanted)")
    say(f"  bare marshal.loads takes {bare:.2f} s; the daemon {taken / bare:.1f} times that (at most 4 wanted)")
    decode, store = status["decode"]["busy_seconds"], status["store"]["commit_seconds"]
    say(f"  decoders were busy {decode:.2f} s (two at once), transactions took {store:.2f} s")


def timed(ask: Callable[[], object], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - started)
    return taken


def measure_queries(base: Path) -> None:
    """Answers at 10,000 profiles against the original, and at 100,000 against their limits."""
    count = len(list(base.rglob("python_stats")))
    original = rival("job-phases", base / "framework" / "pytorch" / "cprofile", count)
    with daemon(base) as (_, client, _folder):
        client.jobs(fresh=True)
        wait_for(client, count)
        ours = statistics.median(timed(lambda: client.job_phases(), 30))
    say(f"queries at {count} profiles")
    say(f"  job-phases: {ours * 1e3:.2f} ms; the original takes {original / ours:.0f} times as long (at least 500)")
    lengthen(base, -(-MANY_SPANS // count))
    many = len(list(base.rglob("python_stats")))
    with daemon(base) as (process, client, _folder):
        client.jobs(fresh=True)
        wait_for(client, many)
        say(f"queries at {many} profiles")
        phases = statistics.median(timed(lambda: client.job_phases(), 50))
        steps = statistics.median(timed(lambda: client.step(100, 200), 50))
        limit("job-phases, median", phases * 1e3, 5, "ms")
        limit("a 100-step range of all nodes, median", steps * 1e3, 20, "ms")
        limit("main process, resident", process.memory_info().rss / 1e6, 250, "MB")
        measure_idle(process)


def cpu_seconds(process: psutil.Process) -> float:
    whole = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in whole)


def measure_idle(process: psutil.Process) -> None:
    """What settled spans cost."""
    time.sleep(10)  # gates are trusted some seconds after the last change
    before, seconds = cpu_seconds(process), 30.0
    time.sleep(seconds)
    limit("nothing new, share of a core", (cpu_seconds(process) - before) / seconds * 100, 0.5, "%")


def measure_visible() -> None:
    """How soon a finished file answers, and what 30 files a second cost."""
    sample = (HERE.parent / "data" / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    for events, most in (("true", 0.2), ("false", 1.2)):
        with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
            base, settings = Path(folder, "profiles"), Path(folder, "c.toml")
            settings.write_text(f'[[source]]\npath = "{base}"\nevents = {events}\n')
            node_folder(base, "0-a").mkdir(parents=True)
            with daemon(None, "-c", str(settings)) as (process, client, _):
                say(f"visible: 30 files a second, events = {events}, poll interval 1 s")
                trickle(process, client, base, sample, most)


def write_steadily(base: Path, node: str, sample: bytes, written: dict[str, float]) -> float:
    """Write 30 files a second for 20 seconds; returns how long it took."""
    start = time.monotonic()
    for place in range(600):
        time.sleep(max(0.0, start + place / 30 - time.monotonic()))
        at = 1_700_000_000_000_000.0 + place * 1000
        name = f"train-{place}-stepstart-{at}_train-{place}-forwardpassend-{at + 500.5}"
        write_span(node_folder(base, node), name, sample)
        written[name] = time.monotonic()
    return time.monotonic() - start


def trickle(process: psutil.Process, client: Client, base: Path, sample: bytes, most: float) -> None:
    """Watch for files as they are written; then write as many again while nobody watches, for what that costs."""
    written: dict[str, float] = {}
    delays: list[float] = []
    events = client.watch()
    writer = threading.Thread(target=write_steadily, args=(base, "0-a", sample, written))
    writer.start()
    for event in events:
        seen = time.monotonic()
        delays.append(seen - written.get(getattr(event, "span", ""), seen))
        if len(delays) == 600:
            break
    events.close()
    writer.join()
    limit("from the end of writing to the answer, 99th percentile", quantile(delays, 0.99), most, "s")
    say(f"  median {statistics.median(delays) * 1e3:.0f} ms, longest {max(delays) * 1e3:.0f} ms")
    before = cpu_seconds(process)
    seconds = write_steadily(base, "0-b", sample, {})
    limit(
        "30 files a second, share of a core, decoders included", (cpu_seconds(process) - before) / seconds * 100, 5, "%"
    )
    limit("main process, resident", process.memory_info().rss / 1e6, 250, "MB")


def measure_metrics(base: Path) -> None:
    """Scrapes while catching up, and after."""
    count = len(list(base.rglob("python_stats")))
    with daemon(base) as (_, client, _folder):
        during: list[float] = []
        while client.status()["profiles"] < count:
            during += timed(lambda: client.raw("/metrics"), 1)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            shown = client.raw("/metrics")[1].decode().splitlines()
            total = sum(
                float(line.rsplit(" ", 1)[1]) for line in shown if line.startswith("phasewatch_profiles_total{")
            )
            if total == count and sum(line.startswith("phasewatch_function_calls_total{") for line in shown) > 1000:
                break
            time.sleep(0.5)
        after = timed(lambda: client.raw("/metrics"), 200)
        page = client.raw("/metrics")[1]
    say(f"/metrics: {NODES} nodes, {page.count(b'phasewatch_function_')} series and heads, {len(page) / 1e6:.1f} MB")
    limit(f"while catching up, 99th percentile of {len(during)}", quantile(during, 0.99) * 1e3, 50, "ms")
    limit("after, 99th percentile of 200", quantile(after, 0.99) * 1e3, 50, "ms")


def main(names: Sequence[str]) -> None:
    wanted = names or ("catch-up", "metrics", "scrape", "visible", "queries", "bucket", "bucket-visible")
    if "scrape" in wanted:
        anyio.run(measure_scrape, say)
    if "bucket" in wanted:
        anyio.run(measure_bucket)
    if "bucket-visible" in wanted:
        anyio.run(measure_bucket_visible)
    if "visible" in wanted:
        measure_visible()
    if set(wanted) & {"catch-up", "metrics", "queries", "idle"}:
        with real_corpus() as base:
            if "catch-up" in wanted:
                measure_catch_up(base)
            if "metrics" in wanted:
                measure_metrics(base)
            if set(wanted) & {"queries", "idle"}:
                measure_queries(base)


if __name__ == "__main__":
    main(sys.argv[1:])
