"""Failures that are tried again or passed over are counted, each in its own metric."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from monitor.config import load_settings
from monitor.daemon import Daemon, run_daemon
from monitor.decoding import open_decode_pool
from monitor.errors import ConfigError
from monitor.notify import Notifier
from monitor.service import Service
from monitor.settings import Settings
from monitor.status import readings_of
from monitor.store import Store
from tests.integration.daemons import DEADLINE_SECONDS, daemon_inside, settings_for


async def until_counted(daemon: Daemon, *names: str) -> None:
    """Wait until each of these metrics is above zero."""
    with anyio.fail_after(DEADLINE_SECONDS):
        while True:
            values: Counter[str] = Counter()
            for reading in readings_of(daemon.parts()):
                values[reading.name] += int(reading.value)
            if all(values[name] > 0 for name in names):
                return
            await anyio.sleep(0.02)


@pytest.mark.usefixtures("aws_endpoint")
async def test_a_bucket_that_is_not_there_is_counted_by_what_wanted_it(short_tmp_path: Path) -> None:
    config = short_tmp_path / "c.toml"
    config.write_text(
        '[[source]]\npath = "s3://no-such-bucket/x"\npoll_interval_seconds = 0.1\n'
        '[[source]]\njobs = "s3://no-such-bucket/*/x"\npoll_interval_seconds = 0.1\n'
        f'[ship]\npath = "{short_tmp_path}"\nto = "s3://no-such-bucket/y"\n'
    )
    places = {"daemon.state_dir": short_tmp_path / "state", "daemon.socket": short_tmp_path / "s.sock"}
    overrides = {key: str(place) for key, place in places.items()} | {"daemon.listen": ""}
    async with daemon_inside(load_settings(config, {}, overrides)) as (daemon, client):
        await until_counted(
            daemon,
            "phasewatch_source_failed_polls",
            "phasewatch_source_job_failures",
            "phasewatch_ship_failures",
        )
        (problem,) = [text for text in (await client.status())["problems"] if text.startswith("a source")]
        assert "no-such-bucket" in problem


async def test_messages_that_nobody_takes_are_counted(short_tmp_path: Path) -> None:
    async with daemon_inside(settings_for(short_tmp_path, short_tmp_path)) as (daemon, _):
        notifier = Notifier(str(short_tmp_path / "nobody"))
        service = Service(notifier)
        service.tell(daemon.parts())
        notifier.close()
        assert service.failures == 1


@pytest.mark.parametrize("wrong", ["refused", "empty"])
async def test_reloads_with_wrong_settings_are_counted(short_tmp_path: Path, wrong: str) -> None:
    settings = settings_for(short_tmp_path, short_tmp_path)

    def read() -> Settings:
        if wrong == "refused":
            raise ConfigError("wrong")
        return replace(settings, source=())

    async def beside(daemon: Daemon) -> None:
        daemon.reload()
        await until_counted(daemon, "phasewatch_reload_failures")

    await run_daemon(settings, reload_settings=read, beside=beside)


async def test_chores_that_the_store_refuses_are_counted(short_tmp_path: Path) -> None:
    settings = settings_for(short_tmp_path, short_tmp_path)
    async with daemon_inside(settings) as (daemon, _):
        assert daemon.round is not None
        drop_totals(daemon.store)
        await daemon.round.upkeep.finish()
        await until_counted(daemon, "phasewatch_store_upkeep_failures")


def drop_totals(store: Store) -> None:
    """Take a table away, so that the totals cannot be saved."""
    with store.transaction():
        store._connection.execute("DROP TABLE totals")


async def test_decoders_that_cannot_be_started_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_decode_pool(workers=1, memory_bytes=2**30, deadline_seconds=5, max_file_bytes=2**20) as pool:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with anyio.move_on_after(0.2):
            await pool.warm_up()
        assert pool.statistics().start_failures >= 1
