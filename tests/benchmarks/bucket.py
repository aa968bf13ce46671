"""Measures a bucket as a source against an endpoint that counts requests, and against bare aiobotocore.

    .cache/test/bin/python -m tests.benchmarks.measure bucket

Takes about five minutes: the history has a million keys.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import anyio
import psutil

from monitor.reading import FileData
from monitor.s3_url import S3Url
from monitor.sources import s3_finder
from monitor.sources.base import FileRef
from monitor.sources.s3 import S3Source
from monitor.sources.s3_client import S3Client, open_s3_client
from tests.sources.s3_endpoint import Endpoint, open_endpoint
from tests.sources.test_s3_listing_cost import Run

HISTORY_KEYS = 1_000_000
NODES = 4
POLLS = 120
POLL_SECONDS = 10.0
OBJECTS = 4_000
OBJECT_BYTES = 11_000
AT_ONCE = 32
ROUNDS = 5


async def ignore(refs: Sequence[FileRef]) -> None:
    """Take references, and let others run."""
    await anyio.lowlevel.checkpoint()


def source_on(client: S3Client) -> S3Source:
    return S3Source(client, S3Url("bucket", "job/profiler-output/"), job="job", most_requests=AT_ONCE)


async def measure_bucket() -> None:
    """Print all figures."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "example")
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        await measure_reading(endpoint, client)
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        await measure_listing(endpoint, client)


async def measure_listing(endpoint: Endpoint, client: S3Client) -> None:
    """Count requests a poll while the history is long, a full pass goes on, and few spans come."""
    from tests.benchmarks.measure import limit, say

    runs = [Run(f"{rank}-algo-{rank}", step_us=18e6) for rank in range(NODES)]
    keys = [key for run in runs for key in (run.begin(), *run.spans(HISTORY_KEYS // NODES // 3))]
    endpoint.put_many(dict.fromkeys(keys, b"x"))
    clock = [1.8e9]
    setattr(s3_finder, "wall_clock", lambda: clock[0])  # noqa: B010 - an hour passes in a minute
    source = source_on(client)
    source._finder.use(ignore)
    before, started = psutil.Process().memory_info().rss, time.perf_counter()
    await source._look(everything=True)
    seconds = time.perf_counter() - started
    say(f"bucket: {len(keys)} keys of history on {NODES} nodes")
    say(f"  first pass: {endpoint.requests['list']} requests, {seconds:.0f} s, {len(keys) / seconds:.0f} keys/s")
    grown = psutil.Process().memory_info().rss - before
    limit("memory grown by the first pass", grown / 1e6, 50, "MB")
    clock[0] += 3_600  # the next pass is due, and is spread over an hour
    requests: list[int] = []
    delays: list[float] = []
    for number in range(POLLS):
        clock[0] += POLL_SECONDS
        node = runs[number % NODES]
        new = node.spans(1) if number % 2 else []  # three spans each 20 s: nine a minute
        for key in new:
            endpoint.put(key, b"x")
        seen, sent, polled = source.statistics().spans_seen, endpoint.requests["list"], time.perf_counter()
        await source._look(everything=False)
        delays.append(time.perf_counter() - polled)
        requests.append(endpoint.requests["list"] - sent)
        if source.statistics().spans_seen - seen != len(new):
            say(f"  poll {number}: {source.statistics().spans_seen - seen} of {len(new)} new spans were found: WRONG")
    share = source.statistics().full_pass_pages
    say(f"  full pass: {share[0]} of {share[1]} pages in {POLLS * POLL_SECONDS:.0f} s")
    say(f"  requests a poll: median {statistics.median(requests):g}, mean {statistics.mean(requests):.1f}")
    limit("requests a poll, most", max(requests), 20, "requests")
    limit("length of a poll, median", statistics.median(delays), 1.3, "s")


async def measure_reading(endpoint: Endpoint, client: S3Client) -> None:
    """Read the same objects through the source and with bare get_object, in turn."""
    from tests.benchmarks.measure import limit, say

    run = Run()
    keys = run.spans(OBJECTS // 3 + 1)[:OBJECTS]
    for key in keys:
        endpoint.put(key, os.urandom(OBJECT_BYTES))
    source = source_on(client)
    refs: list[FileRef] = []

    async def collect(found: Sequence[FileRef]) -> None:
        refs.extend(found)

    source._finder.use(collect)
    await source._look(everything=True)
    mine: list[float] = []
    bare: list[float] = []
    for _ in range(ROUNDS):
        bare.append(await timed_bare(client, keys))
        mine.append(await timed_source(source, refs))
    say(f"bucket: {OBJECTS} objects of {OBJECT_BYTES} bytes, {AT_ONCE} at once, endpoint in the same process")
    say(
        f"  bare get_object {OBJECTS / statistics.median(bare):.0f}/s, source {OBJECTS / statistics.median(mine):.0f}/s"
    )
    limit(
        "time of the source over that of bare get_object", statistics.median(mine) / statistics.median(bare), 1.25, ""
    )


async def timed_bare(client: Any, keys: Sequence[str]) -> float:
    """Read all objects with nothing but the client."""
    rest = iter(keys)

    async def some() -> None:
        for key in rest:
            answer = await client.get_object(Bucket="bucket", Key=key)
            assert len(await answer["Body"].read()) == OBJECT_BYTES

    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(some)
    return time.perf_counter() - started


async def timed_source(source: S3Source, refs: Sequence[FileRef]) -> float:
    """Read all objects as ingest does, a thousand a call and two calls at a time."""
    batches = iter([refs[start : start + 1_000] for start in range(0, len(refs), 1_000)])

    async def some() -> None:
        for batch in batches:
            answers = await source.read(batch, max_bytes=2**20)
            assert all(isinstance(answer, FileData) for answer in answers)

    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(some)
    return time.perf_counter() - started
