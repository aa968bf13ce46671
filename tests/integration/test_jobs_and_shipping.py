"""A daemon that follows a pattern of jobs, and one that ships what it watches: real processes' parts, moto's S3."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from monitor.config import load_settings
from monitor.settings import Settings
from tests.integration.corpora import node_folder, span_names, write_span
from tests.integration.daemons import daemon_inside, until
from tests.sources.moto_server import MotoServer

pytestmark = pytest.mark.usefixtures("aws_endpoint")


def settings_of(folder: Path, text: str) -> Settings:
    path = folder / "c.toml"
    path.write_text(text)
    overrides = {
        "daemon.state_dir": str(folder / "state"),
        "daemon.socket": str(folder / "s.sock"),
        "daemon.listen": "127.0.0.1:0",
        "metrics.refresh_seconds": 0.1,
    }
    return load_settings(path, {}, overrides)


async def test_jobs_of_a_pattern_are_followed_and_new_ones_join(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket = moto_server.make_bucket()
    data = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    names = list(span_names(3))

    def put(job: str) -> None:
        for name in names:
            moto_server.put(bucket, f"training/{job}/out/framework/pytorch/cprofile/0-a/{name}/python_stats", data)

    settings = settings_of(
        short_tmp_path, f'[[source]]\njobs = "s3://{bucket}/training/*/out"\npoll_interval_seconds = 0.1\n'
    )
    async with daemon_inside(settings) as (daemon, client):
        status = await until(client, lambda status: not status["catching_up"])
        assert status["sources"] == []
        for job in ("bert", "resnet"):
            put(job)
        await until(client, lambda status: status["profiles"] == 2 * len(names))
        put("late")
        status = await until(client, lambda status: status["profiles"] == 3 * len(names))
        assert sorted(source["job"] for source in status["sources"]) == ["bert", "late", "resnet"]
        assert {row.job: row.spans for row in (await client.jobs()).jobs} == dict.fromkeys(
            ("bert", "late", "resnet"), len(names)
        )
        daemon.reload()  # settings are read again, and the jobs stay
        await until(client, lambda status: len(status["sources"]) == 3)
    async with daemon_inside(settings) as (_, client):
        status = await until(client, lambda status: len(status["sources"]) == 3 and not status["catching_up"])
        assert status["profiles"] == 3 * len(names)


async def test_a_daemon_ships_what_it_watches_and_deletes_what_is_stored(
    moto_server: MotoServer, data_dir: Path, short_tmp_path: Path
) -> None:
    bucket = moto_server.make_bucket()
    base = short_tmp_path / "base"
    folder = node_folder(base, "0-a")
    names = list(span_names(5))
    data = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    for name in names:
        write_span(folder, name, data)
    broken = folder / "train-99-stepstart-9000000000000000.0_train-99-stepend-9000000000000001.0" / "python_stats"
    broken.parent.mkdir()
    broken.write_bytes(b"no profile")
    text = f'[[source]]\npath = "{base}"\n[ship]\npath = "{base}"\nto = "s3://{bucket}/job"\ndelete = true\n'
    async with daemon_inside(settings_of(short_tmp_path, text)) as (_, client):
        status = await until(client, lambda status: status["ship"]["deleted"] == len(names))
        assert status["profiles"] == len(names)
        assert status["ship"]["uploaded"] == len(names) + 1
        page = (await client.raw("/metrics"))[1].decode()
        assert "phasewatch_ship_deleted_files_total " in page
    assert [path for path in base.rglob("*") if path.is_file()] == [broken]  # what is not stored stays
    keys = moto_server.keys(bucket)
    assert len(keys) == len(names) + 1
    shutil.rmtree(base)
    follower = short_tmp_path / "f"
    follower.mkdir()
    async with daemon_inside(settings_of(follower, f'[[source]]\npath = "s3://{bucket}/job"\n')) as (_, client):
        await until(client, lambda status: status["profiles"] == len(names))
