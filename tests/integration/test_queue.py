"""A daemon whose bucket tells of new objects through a queue."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from monitor.config import load_settings
from monitor.settings import Settings
from tests.integration.corpora import span_names
from tests.integration.daemons import daemon_inside, until
from tests.sources.moto_server import MotoServer

PREFIX = "job/framework/pytorch/cprofile/0-a"

pytestmark = pytest.mark.usefixtures("aws_endpoint")


def settings_of(folder: Path, bucket: str, queue: str) -> Settings:
    path = folder / "c.toml"
    path.write_text(
        f'[[source]]\npath = "s3://{bucket}/job"\nsqs = "{queue}"\npoll_interval_seconds = 3600\n', encoding="utf-8"
    )
    overrides = {
        "daemon.state_dir": str(folder / "state"),
        "daemon.socket": str(folder / "s.sock"),
        "daemon.listen": "",
        "ingest.broken_after_seconds": 0.2,
    }
    return load_settings(path, {}, overrides)


def event(bucket: str, key: str) -> dict[str, Any]:
    return {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}]}


async def test_spans_come_from_the_queue_duplicates_and_disorder_included(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket, queue = moto_server.make_bucket(), moto_server.make_queue()
    data = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    keys = [f"{PREFIX}/{name}/python_stats" for name in span_names(10)]
    async with daemon_inside(settings_of(short_tmp_path, bucket, queue)) as (_, client):
        await until(client, lambda status: status["sources"][0]["polls"] == 1)
        for key in keys:
            moto_server.put(bucket, key, data)
        bodies = [json.dumps(event(bucket, key)) for key in keys] * 2
        bodies += [json.dumps(event("another", keys[0])), json.dumps(event(bucket, "elsewhere/python_stats"))]
        random.Random(3).shuffle(bodies)
        for body in bodies:
            moto_server.send(queue, body)
        status = await until(client, lambda status: status["profiles"] == len(keys))
        assert status["sources"][0]["polls"] == 1  # no look found them
        assert status["sources"][0]["events_active"]
        await until(client, lambda _: moto_server.messages(queue) == 0)


async def test_a_new_object_is_visible_soon_after_its_message(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket, queue = moto_server.make_bucket(), moto_server.make_queue()
    data = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    async with daemon_inside(settings_of(short_tmp_path, bucket, queue)) as (_, client):
        await until(client, lambda status: status["sources"][0]["polls"] == 1)
        delays: list[float] = []
        for number, name in enumerate(list(span_names(4))[:9]):
            key = f"{PREFIX}/{name}/python_stats"
            moto_server.put(bucket, key, data)
            sent = time.monotonic()
            moto_server.send(queue, json.dumps(event(bucket, key)))
            await until(client, lambda status, most=number: status["profiles"] > most)  # type: ignore[misc]
            delays.append(time.monotonic() - sent)
        assert sorted(delays)[len(delays) // 2] < 2  # moto looks at its queue once a second


async def test_a_message_that_means_nothing_and_one_whose_object_is_broken_stay_in_the_queue(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket, queue = moto_server.make_bucket(), moto_server.make_queue()
    broken = f"{PREFIX}/{next(span_names(1))}/python_stats"
    async with daemon_inside(settings_of(short_tmp_path, bucket, queue)) as (_, client):
        await until(client, lambda status: status["sources"][0]["polls"] == 1)
        moto_server.put(bucket, broken, b"no profile")
        moto_server.send(queue, "poison")
        moto_server.send(queue, json.dumps(event(bucket, broken)))
        await until(client, lambda status: status["sources"][0]["messages_set_aside"] == 1)
        await until(client, lambda status: status["ingest"]["set_aside"] == {"corrupt": 1})
        assert moto_server.messages(queue) == 2
