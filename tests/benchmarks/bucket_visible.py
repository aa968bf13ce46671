"""Measures how soon a new object in a bucket answers, found by polls and told by a queue.

    .cache/test/bin/python -m tests.benchmarks.measure bucket-visible

A whole daemon watches moto's server in this process; times are from the end of the upload to the event of /v1/watch.
"""

from __future__ import annotations

import json
import logging
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from monitor.client import AsyncClient
from monitor.config import load_settings
from tests.integration.corpora import span_names
from tests.integration.daemons import daemon_inside
from tests.sources.moto_server import MotoServer, serve_moto

SPANS = 60
POLL_SECONDS = 1.0
PREFIX = "job/framework/pytorch/cprofile/0-a"
SAMPLE = Path(__file__).parents[1] / "data" / "formats" / "cpython-3.11" / "python_stats"


async def measure_bucket_visible() -> None:
    """Print all figures."""
    from tests.benchmarks.measure import limit, quantile, say

    os.environ |= {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example"}
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with serve_moto() as moto:
        os.environ["AWS_ENDPOINT_URL"] = moto.endpoint
        for queue, most in ((None, POLL_SECONDS + 0.3), (moto.make_queue(), 0.5)):
            delays = await delays_of(moto, queue)
            how = "told by a queue" if queue else f"polls each {POLL_SECONDS:g} s"
            say(f"bucket: {len(delays)} spans, one after the other, {how}")
            limit("from the upload to the answer, 99th percentile", quantile(delays, 0.99), most, "s")
            say(f"  median {statistics.median(delays) * 1e3:.0f} ms, longest {max(delays) * 1e3:.0f} ms")


async def delays_of(moto: MotoServer, queue: str | None) -> list[float]:
    """Upload spans at random times; returns how many seconds each took until it answered."""
    bucket, data, chance = moto.make_bucket(), SAMPLE.read_bytes(), random.Random(7)
    names = list(span_names(SPANS // 3))[:SPANS]
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        config = Path(folder, "c.toml")
        told = f'sqs = "{queue}"\npoll_interval_seconds = 3600' if queue else f"poll_interval_seconds = {POLL_SECONDS}"
        config.write_text(f'[[source]]\npath = "s3://{bucket}/job"\n{told}\n')  # noqa: ASYNC240 - nothing else runs yet
        overrides = {"daemon.state_dir": f"{folder}/state", "daemon.socket": f"{folder}/s", "daemon.listen": ""}
        async with daemon_inside(load_settings(config, {}, overrides)) as (_, client):
            uploaded: dict[str, float] = {}
            delays: list[float] = []
            async with anyio.create_task_group() as group:
                await group.start(watch, client, uploaded, delays)
                for name in names:
                    await anyio.sleep(chance.uniform(0.2, 0.8))
                    key = f"{PREFIX}/{name}/python_stats"
                    await anyio.to_thread.run_sync(moto.put, bucket, key, data)
                    uploaded[name] = time.monotonic()
                    if queue:
                        await anyio.to_thread.run_sync(moto.send, queue, event(bucket, key))
                with anyio.fail_after(30):
                    while len(delays) < len(names):  # noqa: ASYNC110 - at the end of a benchmark
                        await anyio.sleep(0.05)
                group.cancel_scope.cancel()
    return delays


async def watch(
    client: AsyncClient, uploaded: dict[str, float], delays: list[float], *, task_status: TaskStatus[None]
) -> None:
    """Note when each span answers; one that answers before its upload has returned took no time."""
    events = client.watch()
    async with anyio.create_task_group() as group:
        group.start_soon(started_soon, task_status)
        async for seen in events:
            now = time.monotonic()
            delays.append(max(0.0, now - uploaded.get(getattr(seen, "span", ""), now)))


async def started_soon(task_status: TaskStatus[None]) -> None:
    """Give the subscription the time to be made: nothing tells when it is."""
    await anyio.sleep(0.5)
    task_status.started()


def event(bucket: str, key: str) -> str:
    """Write what S3 sends about a new object."""
    found = {"bucket": {"name": bucket}, "object": {"key": key}}
    return json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "s3": found}]})
