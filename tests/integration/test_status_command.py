"""`phasewatch status` of a daemon that is well, and of one that is not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import anyio
from click.testing import CliRunner, Result

from monitor.cli import main
from monitor.status_command import duration, size
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.integration.daemons import daemon_inside, settings_for, until


async def status(folder: Path, *words: str) -> Result:
    """Run the command against the daemon of a folder."""
    arguments = ["status", "--socket", str(folder / "s.sock"), *words]
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, arguments))


async def test_a_daemon_that_is_well(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    profiles = write_run(tmp_path, data_dir / "formats", nodes=1, steps=3)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path, metrics__functions_per_phase=2)) as (_, client):
        await until(client, lambda state: state["profiles"] == profiles and state["budget"]["full_phases"] > 0)
        answer = await status(short_tmp_path)
    assert answer.exit_code == 0
    lines = answer.output.splitlines()
    assert lines[0] == "all is well"
    assert lines[1] == f"now:     watching {tmp_path}: {profiles} profiles stored since the start"
    assert lines[2].startswith(f"daemon:  phasewatch 0.1.0, process {os.getpid()}, up ")
    assert lines[4].startswith(f"store:   {profiles} profiles, {profiles} with rows, ")
    assert lines[5] == "failed:  nothing since the start"
    assert lines[6] == f"source:  {tmp_path}, job training"
    assert lines[8] == "           0 files waiting, 0 tried again, 0 set aside"
    assert "           2 of 2: training 0-host-0 cprofile, train → train (training_loop)" in lines


async def test_a_daemon_that_is_not_well_says_why_and_ends_with_4(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    write_run(tmp_path / "profiles", data_dir / "formats", nodes=1, steps=1)
    broken = write_span(node_folder(tmp_path / "profiles", "1-b"), list(span_names(2))[1], b"\xffbroken")
    settings = settings_for(
        short_tmp_path, tmp_path / "profiles", ingest__broken_after_seconds=0.1, ingest__recheck_seconds=0.1
    )
    async with daemon_inside(settings) as (_, client):
        await until(client, lambda state: bool(state["set_aside"]))
        answer = await status(short_tmp_path)
        assert answer.exit_code == 4
        assert answer.output.splitlines()[0] == "problem: files set aside: 1"
        assert f"set aside: {broken}: not a marshalled pstats dictionary" in answer.output
        shutil.rmtree(tmp_path / "profiles")
        lost = f"{tmp_path}/profiles is not there, or may not be entered"
        await until(client, lambda state: f"a source cannot be read: {lost}" in state["problems"])
        answer = await status(short_tmp_path, "--format", "json")
        assert answer.exit_code == 4
        (source,) = json.loads(answer.output)["sources"]
        assert source["last_error"] == lost
        assert source["failed_polls"] > 0
        assert source["last_good_poll_age_seconds"] > 0
        assert source["last_error_timestamp"] > source["last_good_poll_timestamp"]
        assert "last error at 20" in (await status(short_tmp_path)).output
        write_run(tmp_path / "profiles", data_dir / "formats", nodes=1, steps=1)
        await until(client, lambda state: not state["problems"])
        answer = await status(short_tmp_path)
        assert answer.exit_code == 0
        assert f": {lost}" in answer.output  # the last error stays to be seen


async def test_no_daemon_is_code_1(short_tmp_path: Path) -> None:
    answer = await status(short_tmp_path)
    assert answer.exit_code == 1
    assert "no daemon answers" in answer.output


def test_times_and_sizes_are_short() -> None:
    assert [duration(seconds) for seconds in (1.25, 75, 4_000, 100_000)] == [
        "1.2 s",
        "1 min 15 s",
        "1 h 6 min",
        "1 d 3 h",
    ]
    assert [size(count) for count in (0, 1023, 1536, 2**40 * 3000)] == ["0 B", "1023 B", "1.5 KiB", "3000.0 TiB"]
