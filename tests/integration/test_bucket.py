"""Daemons on a bucket: killed and resumed, two at once, several jobs, local and S3 mixed, late objects, `fresh`."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import anyio
import pytest

from monitor.client import Client
from monitor.config import load_settings
from monitor.settings import Settings
from tests.integration.corpora import span_names, write_run
from tests.integration.daemons import daemon_child, daemon_inside, settings_for, stop, until
from tests.integration.totals import assert_same, phases, whole_pass
from tests.sources.moto_server import MotoServer
from tests.sources.test_s3_listing_cost import Run

KILLS = 4

pytestmark = pytest.mark.usefixtures("aws_endpoint")


def sample(data_dir: Path) -> bytes:
    return (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()


def polls_often(folder: Path, *paths: str) -> Path:
    """Write a config file whose sources are polled often."""
    text = "".join(
        f'[[source]]\npath = "{path}"\njob = "job-{number}"\npoll_interval_seconds = 0.05\n'
        for number, path in enumerate(paths)
    )
    path = folder / "c.toml"
    path.write_text(text)
    return path


def settings_of(folder: Path, *paths: str) -> Settings:
    overrides = {
        "daemon.state_dir": str(folder / "state"),
        "daemon.socket": str(folder / "s.sock"),
        "daemon.listen": "127.0.0.1:0",
        "metrics.refresh_seconds": 0.1,
    }
    return load_settings(polls_often(folder, *paths), {}, overrides)


def test_killed_at_random_moments_a_bucket_counts_as_a_folder_read_once(
    moto_server: MotoServer, data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    profiles = write_run(source, data_dir / "formats", nodes=2, steps=150)
    expected = whole_pass(short_tmp_path / "a", source)
    bucket = moto_server.make_bucket()
    assert moto_server.upload(bucket, "job/", source) == profiles
    chance = random.Random(os.urandom(8))
    folder = short_tmp_path / "b"
    folder.mkdir()
    for _ in range(KILLS):
        with daemon_child(folder, f"s3://{bucket}/job", "--listen", "") as (process, _):
            killer = threading.Timer(chance.uniform(0.0, 1.5), process.send_signal, [signal.SIGKILL])
            killer.start()
            process.wait()
            killer.join()
    with daemon_child(folder, f"s3://{bucket}/job") as (process, client):
        assert_same(phases(client), expected)
        stop(process)


def test_after_a_kill_the_history_is_not_listed_again(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket = moto_server.make_bucket()
    run, data = Run(step_us=10e6), sample(data_dir)
    config = polls_often(short_tmp_path, f"s3://{bucket}/job")
    for key in (old := [run.begin(), *run.spans(200)]):
        moto_server.put(bucket, key, data)
    with daemon_child(short_tmp_path, None, "-c", str(config)) as (process, client):
        assert client.jobs(fresh=True).jobs[0].spans == len(old)
        wait_for_cursor(client)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for key in (new := run.spans(10)):
        moto_server.put(bucket, key, data)
    with daemon_child(short_tmp_path, None, "-c", str(config)) as (process, client):
        assert client.jobs(fresh=True).jobs[0].spans == len(old) + len(new)
        (status,) = client.status()["sources"]
        assert status["spans_seen"] < 200  # of 631; what is within the window is named once more, and known
        assert status["requests"]["get"] == {"ok": len(new), "missing": 1}  # the one: is there a sidecar file?
        stop(process)


def wait_for_cursor(client: Client) -> None:
    """Wait until what the source keeps must be in the store: it does so every five seconds."""
    commits = client.status()["sources"][0]["cursors_kept"]
    for _ in range(600):
        if client.status()["sources"][0]["cursors_kept"] > commits:
            break
        threading.Event().wait(0.02)  # nothing tells when; the status does
    client.jobs(fresh=True)
    threading.Event().wait(1.1)  # the storing task writes it within a second


async def test_two_daemons_follow_one_bucket(moto_server: MotoServer, data_dir: Path, short_tmp_path: Path) -> None:
    bucket = moto_server.make_bucket()
    names, data = list(span_names(40)), sample(data_dir)
    folders = [short_tmp_path / "a", short_tmp_path / "b"]
    for folder in folders:
        folder.mkdir()

    def put(some: list[str]) -> None:
        for name in some:
            moto_server.put(bucket, f"job/framework/pytorch/cprofile/0-a/{name}/python_stats", data)

    put(names[:50])
    async with (
        daemon_inside(settings_of(folders[0], f"s3://{bucket}/job")) as (_, one),
        daemon_inside(settings_of(folders[1], f"s3://{bucket}/job")) as (_, two),
    ):
        put(names[50:])
        for client in (one, two):
            await until(client, lambda status: status["profiles"] == len(names))
        assert await one.training_phases(fresh=True) == await two.training_phases(fresh=True)


async def test_several_jobs_local_and_in_buckets_are_followed_at_once(
    moto_server: MotoServer, data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    profiles = write_run(tmp_path, data_dir / "formats", nodes=1, steps=10)
    bucket = moto_server.make_bucket()
    moto_server.upload(bucket, "one/profiler-output/", tmp_path)
    moto_server.upload(bucket, "two/", tmp_path)
    settings = settings_of(short_tmp_path, str(tmp_path), f"s3://{bucket}/one", f"s3://{bucket}/two")
    async with daemon_inside(settings) as (_, client):
        jobs = (await client.jobs(fresh=True)).jobs
        assert [(job.job, job.spans) for job in jobs] == [(f"job-{number}", profiles) for number in range(3)]
        counted = f'operation="get",result="ok",source="s3://{bucket}/one"'
        with anyio.fail_after(30):  # a page on which no profile is new is drawn every ten seconds
            while counted not in (await client.raw("/metrics"))[1].decode():  # noqa: ASYNC110
                await anyio.sleep(0.05)


async def test_an_object_that_is_broken_is_read_again_when_it_is_put_anew(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket = moto_server.make_bucket()
    key = f"job/framework/pytorch/cprofile/0-a/{next(span_names(3))}/python_stats"
    moto_server.put(bucket, key, b"no profile")
    settings = settings_for(
        short_tmp_path, f"s3://{bucket}/job", ingest__broken_after_seconds=0.2, ingest__recheck_seconds=0.1
    )
    async with daemon_inside(settings) as (_, client):
        status = await until(client, lambda status: status["ingest"]["set_aside"] == {"corrupt": 1})
        assert status["set_aside"][0]["path"] == f"s3://{bucket}/{key}"
        moto_server.put(bucket, key, sample(data_dir))
        await until(client, lambda status: status["profiles"] == 1)


async def test_an_object_that_is_gone_when_it_is_read_is_waited_for_and_forgotten(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket = moto_server.make_bucket()
    settings = settings_for(
        short_tmp_path, f"s3://{bucket}/job", ingest__broken_after_seconds=0.2, ingest__recheck_seconds=0.1
    )
    key = f"job/framework/pytorch/cprofile/0-a/{next(span_names(3))}/python_stats"
    moto_server.put(bucket, key, b"no profile")
    async with daemon_inside(settings) as (_, client):
        await until(client, lambda status: status["ingest"]["set_aside"] == {"corrupt": 1})
        moto_server.remove(bucket, key)
        await until(client, lambda status: status["set_aside"] == [])
        moto_server.put(bucket, key, sample(data_dir))
        assert (await client.jobs(fresh=True)).jobs[0].spans == 1
