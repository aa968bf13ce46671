"""Files as they really come: half-written, broken, late, deleted, in folders that appear and vanish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from monitor.config import load_settings
from monitor.errors import ConfigError, QueryError
from monitor.store import Store
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.integration.daemons import DEADLINE_SECONDS, daemon_child, daemon_inside, settings_for, until

NAMES = list(span_names(40))


def sample(data_dir: Path) -> bytes:
    return (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()


async def test_a_file_that_grows_is_taken_when_it_is_whole(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    data = sample(data_dir)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        path = write_span(node_folder(tmp_path, "0-a"), NAMES[3], b"")
        for end in range(0, len(data), 1500):
            path.write_bytes(data[:end])
            await client.jobs(fresh=True)
            assert (await client.status())["profiles"] == 0
        path.write_bytes(data)
        await until(client, lambda status: status["profiles"] == 1)
        assert (await client.status())["ingest"]["set_aside"] == {}


async def test_a_file_that_is_due_again_while_its_batch_is_still_stored_is_not_forgotten(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Store.commit

    def slowly(self: Store, *arguments: Any) -> Any:
        time.sleep(1.0)
        return commit(self, *arguments)

    monkeypatch.setattr(Store, "commit", slowly)
    data, folder = sample(data_dir), node_folder(tmp_path, "0-a")
    half = write_span(folder, NAMES[3], data[: len(data) // 2])
    write_span(folder, NAMES[4], data)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        await until(client, lambda status: status["profiles"] == 1 and status["ingest"]["retrying"] == 1)
        half.write_bytes(data)
        await until(client, lambda status: status["profiles"] == 2)


async def test_a_broken_file_is_set_aside_with_its_reason_and_tried_again_when_it_changes(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    settings = settings_for(short_tmp_path, tmp_path, ingest__broken_after_seconds=0.2, ingest__recheck_seconds=0.1)
    async with daemon_inside(settings) as (_, client):
        broken = write_span(node_folder(tmp_path, "0-a"), NAMES[3], b"no profile")
        write_span(node_folder(tmp_path, "0-a"), NAMES[4], sample(data_dir))
        status = await until(client, lambda status: status["ingest"]["set_aside"] == {"corrupt": 1})
        assert status["profiles"] == 1
        assert status["set_aside"][0]["path"] == str(broken)
        assert "not a marshalled pstats dictionary" in status["set_aside"][0]["reason"]
        page = (await client.raw("/metrics"))[1].decode()
        assert 'phasewatch_ingest_set_aside_files{kind="corrupt"}' in page
        broken.write_bytes(sample(data_dir))
        status = await until(client, lambda status: status["profiles"] == 2)
        assert status["ingest"]["set_aside"] == {}


async def test_a_span_folder_whose_file_comes_late_is_waited_for(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        folder = node_folder(tmp_path, "0-a") / NAMES[3]
        folder.mkdir(parents=True)
        await until(client, lambda status: status["ingest"]["retrying"] == 1)
        (folder / "python_stats").write_bytes(sample(data_dir))
        await until(client, lambda status: status["profiles"] == 1 and status["ingest"]["retrying"] == 0)


async def test_a_folder_deleted_before_it_is_read_is_forgotten(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    settings = settings_for(short_tmp_path, tmp_path, ingest__broken_after_seconds=0.1, ingest__recheck_seconds=0.1)
    async with daemon_inside(settings) as (_, client):
        folder = node_folder(tmp_path, "0-a")
        (folder / NAMES[3]).mkdir(parents=True)
        write_span(folder, NAMES[4], sample(data_dir))
        await until(client, lambda status: status["profiles"] == 1 and status["ingest"]["failures"] != {})
        shutil.rmtree(folder / NAMES[3])
        status = await until(client, lambda s: s["ingest"]["retrying"] == 0 and s["ingest"]["set_aside"] == {})
        assert status["profiles"] == 1


async def test_a_base_folder_that_comes_later_is_watched(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    base = tmp_path / "not" / "yet"
    settings = settings_for(short_tmp_path, base)
    async with daemon_inside(settings) as (_, client):
        assert not (await client.status())["sources"][0]["available"]
        write_span(node_folder(base, "0-a"), NAMES[3], sample(data_dir))
        status = await until(client, lambda status: status["profiles"] == 1)
        assert status["sources"][0]["available"]


@pytest.mark.parametrize("where", ["above", "base", "framework", "profiler", "node"])
async def test_what_is_found_decides_wherever_the_path_points(
    where: str, data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    base = tmp_path / "job" / "profiler-output"
    write_run(base, data_dir / "formats", nodes=1, steps=3)
    folders = {
        "above": tmp_path,
        "base": base,
        "framework": base / "framework",
        "profiler": base / "framework" / "pytorch" / "cprofile",
        "node": node_folder(base, "0-host-0"),
    }
    async with daemon_inside(settings_for(short_tmp_path, folders[where])) as (_, client):
        nodes = (await client.nodes(fresh=True)).nodes
    assert [(node.framework, node.profiler, node.node, node.spans) for node in nodes] == [
        ("pytorch", "cprofile", "0-host-0", 11)
    ]


async def test_a_link_that_leads_out_is_refused_and_counted(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    outside, base = tmp_path / "outside", tmp_path / "base"
    write_span(outside, NAMES[3], sample(data_dir))
    folder = node_folder(base, "0-a")
    write_span(folder, NAMES[4], sample(data_dir))
    (folder / NAMES[3]).symlink_to(outside / NAMES[3])
    (folder / NAMES[5]).mkdir()
    (folder / NAMES[5] / "python_stats").symlink_to(outside / NAMES[3] / "python_stats")
    async with daemon_inside(settings_for(short_tmp_path, base)) as (_, client):
        await client.jobs(fresh=True)
        status = await client.status()
    assert status["profiles"] == 1
    assert status["sources"][0]["refused_links"] == 1
    assert status["ingest"]["set_aside"] == {"refused": 1}


async def test_two_jobs_several_nodes_and_frameworks_are_told_apart(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    config = short_tmp_path / "c.toml"
    for job in ("one", "two"):
        write_run(tmp_path / job, data_dir / "formats", nodes=2, steps=2)
    write_span(tmp_path / "two/framework/tensorflow/cprofile/0-host-0", NAMES[2], sample(data_dir))
    sources = "".join(f'[[source]]\npath = "{tmp_path / job}"\njob = "{job}"\n' for job in ("one", "two"))
    config.write_text(sources)
    overrides = {"daemon.state_dir": str(short_tmp_path / "x"), "daemon.socket": str(short_tmp_path / "s")}
    settings = load_settings(config, {}, overrides | {"daemon.listen": ""})
    async with daemon_inside(settings) as (_, client):
        jobs = (await client.jobs(fresh=True)).jobs
        assert [(job.job, job.spans, job.nodes) for job in jobs] == [("one", 16, 2), ("two", 17, 2)]
        both = await client.job_phases()
        one = await client.job_phases(job="one", node="0-host-0")
        flow = await client.step(0, 100, framework="tensorflow", job=["one", "two"])
        assert sum(phase.spans for phase in both.phases) == 33
        assert sum(phase.spans for phase in one.phases) == 8
        assert flow.spans == 1
        with pytest.raises(QueryError, match="there are: one, two") as caught:
            await client.job_phases(job="three")
        assert (caught.value.status, caught.value.parameter) == (404, "job")


async def test_new_spans_are_told_to_watchers(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    write_span(node_folder(tmp_path, "0-a"), NAMES[2], sample(data_dir))
    settings = settings_for(short_tmp_path, tmp_path)
    async with daemon_inside(settings) as (daemon, client):
        await client.jobs(fresh=True)
        with daemon.watchers.subscribe() as events:
            write_span(node_folder(tmp_path, "0-a"), NAMES[3], sample(data_dir))
            with anyio.fail_after(DEADLINE_SECONDS):
                event = await anext(events)
    assert getattr(event, "name", None) == NAMES[3]


def test_a_second_daemon_on_one_state_folder_is_refused_and_told_what_to_do(
    tmp_path: Path, short_tmp_path: Path
) -> None:
    with daemon_child(short_tmp_path, tmp_path) as (first, _):
        command = [sys.executable, "-m", "monitor", "run", str(tmp_path), "--listen", ""]
        command += ["--state-dir", str(short_tmp_path / "state"), "--socket", str(short_tmp_path / "other.sock")]
        second = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        assert second.returncode == 3
        assert f"(pid {first.pid})" in second.stderr
        assert "choose another with --state-dir" in second.stderr


async def test_a_live_socket_is_refused(tmp_path: Path, short_tmp_path: Path) -> None:
    first = settings_for(short_tmp_path, tmp_path)
    second = settings_for(short_tmp_path, tmp_path, daemon__state_dir=str(short_tmp_path / "other"))
    async with daemon_inside(first) as (_, client):
        with pytest.raises(ExceptionGroup) as caught:
            async with daemon_inside(second):
                pass
        assert caught.group_contains(ConfigError, match="another phasewatch listens on")
        assert (await client.status())["pid"] == os.getpid()


async def test_very_many_sources_with_events_do_not_starve_the_daemon(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    tables = []
    for place in range(45):
        base = tmp_path / f"job-{place}"
        write_span(node_folder(base, "0-a"), NAMES[3], sample(data_dir))
        tables.append(f'[[source]]\npath = "{base}"\njob = "job-{place}"\n')
    config = short_tmp_path / "c.toml"
    config.write_text("".join(tables))
    overrides = {"daemon.state_dir": str(short_tmp_path / "x"), "daemon.socket": str(short_tmp_path / "s")}
    async with daemon_inside(load_settings(config, {}, overrides | {"daemon.listen": ""})) as (_, client):
        await until(client, lambda status: status["profiles"] == 45)


async def test_many_folders_without_a_file_cost_little_and_good_files_go_on(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    for name in list(span_names(1000)):
        (node_folder(tmp_path, "0-a") / name).mkdir(parents=True)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        await until(client, lambda status: status["ingest"]["retrying"] > 3000)
        write_span(node_folder(tmp_path, "0-b"), NAMES[3], sample(data_dir))
        await until(client, lambda status: status["profiles"] == 1)


async def test_the_page_is_never_empty_while_settings_are_reloaded(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=3)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (daemon, client):
        await client.jobs(fresh=True)
        for _ in range(5):
            before = daemon.round
            daemon.reload()
            with anyio.fail_after(DEADLINE_SECONDS):
                while daemon.round is before:
                    assert b"phasewatch_build_info" in (await client.raw("/metrics"))[1]
            assert b"phasewatch_build_info" in (await client.raw("/metrics"))[1]
        assert sum(job.spans for job in (await client.jobs(fresh=True)).jobs) == 11
