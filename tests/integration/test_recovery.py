"""Nothing is lost and nothing is counted twice: kill -9 at random moments, restarts, counters that never fall."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from monitor.api.schema import JobPhasesAnswer
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.integration.daemons import daemon_child, daemon_inside, settings_for, stop, until
from tests.integration.totals import Counters, assert_same, counters, phases, wait_for_counters, whole_pass

KILLS = 6


def test_killed_at_random_moments_all_counts_are_those_of_one_clean_pass(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    profiles = write_run(source, data_dir / "formats", nodes=3, steps=400)
    expected = whole_pass(short_tmp_path / "a", source)
    assert sum(phase.spans for phase in expected.phases) == profiles
    chance = random.Random(os.urandom(8))
    folder = short_tmp_path / "b"
    folder.mkdir()
    seen: Counters = {}
    for _ in range(KILLS):
        with daemon_child(folder, source, "--listen", "") as (process, client):
            killer = threading.Timer(chance.uniform(0.0, 0.5), process.send_signal, [signal.SIGKILL])
            killer.start()
            process.wait()
            killer.join()
    with daemon_child(folder, source) as (process, client):
        assert_same(phases(client), expected)
        seen = counters(client.raw("/metrics")[1])
        process.send_signal(signal.SIGKILL)
        process.wait()
    with daemon_child(folder, source) as (process, client):
        assert_same(phases(client), expected)
        again = counters(client.raw("/metrics")[1])
        stop(process)
    assert seen.keys() <= again.keys()
    fallen = {key for key, value in seen.items() if again[key] < value}
    assert not fallen


def test_counters_come_back_bit_by_bit_with_and_without_a_clean_stop(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    write_run(source, data_dir / "formats", nodes=2, steps=60)
    pages: list[Counters] = []
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        with daemon_child(short_tmp_path, source) as (process, client):
            client.jobs(fresh=True)
            wait_for_counters(client)
            pages.append(counters(client.raw("/metrics")[1]))
            stop(process, number)
    assert pages[0]
    assert pages[1] == pages[0]
    assert pages[2] == pages[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_within_five_seconds_and_removes_the_socket(
    number: signal.Signals, data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    write_run(source, data_dir / "formats", nodes=2, steps=300)
    with daemon_child(short_tmp_path, source) as (process, _):
        assert stop(process, number) < 5
        assert process.returncode == 0
    assert not (short_tmp_path / "s.sock").exists()


async def test_reading_a_file_twice_changes_nothing(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    source = tmp_path / "profiles"
    profiles = write_run(source, data_dir / "formats", nodes=1, steps=10)
    async with daemon_inside(settings_for(short_tmp_path, source)) as (_, client):
        first = await client.job_phases(fresh=True)
        folder = node_folder(source, "0-host-0")
        moved = tmp_path / "moved"
        folder.rename(moved)
        await client.jobs(fresh=True)
        moved.rename(folder)
        second = await client.job_phases(fresh=True)
    assert sum(phase.spans for phase in first.phases) == profiles
    assert second == first


async def test_retention_drops_rows_and_keeps_totals_also_after_a_restart(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    profiles = write_run(source, data_dir / "formats", nodes=1, steps=30)
    settings = settings_for(short_tmp_path, source, store__retention_spans=10, store__retention_interval_seconds=0.1)
    answers: list[JobPhasesAnswer] = []
    for _ in range(3):
        async with daemon_inside(settings) as (_, client):
            await client.jobs(fresh=True)
            await until(client, lambda status: status["profiles_with_rows"] == 10)
            answers.append(await client.job_phases(callers=True, fresh=True))
            status = await client.status()
            assert status["profiles"] == profiles
            assert status["profiles_with_rows"] == 10
            assert len((await client.profiles()).profiles) == 10
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]


async def test_a_new_span_after_retention_is_counted_once(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    source = tmp_path / "profiles"
    profiles = write_run(source, data_dir / "formats", nodes=1, steps=5)
    settings = settings_for(short_tmp_path, source, store__retention_spans=3, store__retention_interval_seconds=0.1)
    async with daemon_inside(settings) as (_, client):
        await client.jobs(fresh=True)
        await until(client, lambda status: status["profiles_with_rows"] == 3)
        name = list(span_names(200))[-5]
        sample = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
        write_span(node_folder(source, "0-host-0"), name, sample)
        jobs = (await client.jobs(fresh=True)).jobs
        assert [job.spans for job in jobs] == [profiles + 1]
