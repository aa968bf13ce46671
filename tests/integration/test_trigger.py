"""Profiling on demand and sidecar files, end to end: a real training process, a real daemon, the real command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import duckdb
import pytest
from click.testing import CliRunner

from monitor.budget import Amount, Shown
from monitor.budgets import load_budgets
from monitor.cli import main
from monitor.client import Client
from monitor.errors import QueryError
from monitor.schema import SCHEMA_VERSION, TABLES
from monitor.store import open_store
from tests.integration.daemons import daemon_child, daemon_inside, settings_for, until

ROOT = Path(__file__).parents[2]
TRAINING = """
import itertools, sys, time
from monitor.capture import Capture, PythonProfileModes
capture = Capture(sys.argv[1], node=sys.argv[2], every=0)
def unit(): pass
print("training", flush=True)
for step in itertools.count():
    with capture.step(PythonProfileModes.TRAIN, step):
        unit()
    time.sleep(0.005)
"""


@pytest.fixture
def training(short_tmp_path: Path) -> Iterator[Path]:
    """A base folder that two processes train beside; no step is profiled until that is asked for."""
    base = short_tmp_path / "base"
    base.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    commands = [[sys.executable, "-c", TRAINING, str(base), node] for node in ("0-a", "1-b")]
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for command in commands]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"training\n"
    yield base
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def stepped(client: Client, node: str) -> int:
    """How many steps of a node were profiled from start to end."""
    rows = client.profiles(node=node, fresh=True).profiles
    return sum(row.start_phase == "stepstart" for row in rows)


def test_the_command_asks_through_the_daemon_and_shows_the_answers(training: Path, short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, training) as (_, client):
        words = ["trigger", "--steps", "20", "--node", "1-b", "--socket", str(short_tmp_path / "s.sock")]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        assert f"asked {training} for 20 steps" in result.output
        assert "1-b: done" in result.output
        assert "0-a" not in result.output
        assert stepped(client, "1-b") == 20
        answer = client.step(0, 10**9, node="1-b", end_phase="stepend")
        assert [function.calls for function in answer.functions if function.name == "unit"] == [20]
        (facts,) = client.status()["captures"]
        assert facts["node"] == "1-b"
        assert facts["timer"] == "wall"


def test_the_command_asks_in_a_folder_without_a_daemon(training: Path) -> None:
    result = CliRunner().invoke(main, ["trigger", str(training), "--steps", "3"])
    assert result.exit_code == 0, result.output
    assert {"0-a: done", "1-b: done"} & set(result.output.splitlines())


def test_nobody_who_answers_is_code_1(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["trigger", str(tmp_path), "--steps", "3", "--wait", "0"])
    assert result.exit_code == 1
    assert "no node has answered within 0 s" in result.output
    result = CliRunner().invoke(main, ["trigger", str(tmp_path / "nowhere"), "--steps", "3"])
    assert result.exit_code == 1
    assert "is no base folder" in result.output


def test_what_cannot_be_asked_is_refused_with_the_reason(short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, short_tmp_path / "base") as (_, client):
        for fields, message in (
            ({"job": "other"}, "jobs with one: training"),
            ({"profiler": "perf"}, "Invalid enum value 'perf'"),
            ({"walk": 1}, "unknown field `walk`"),
            ({}, "is no base folder"),
        ):
            with pytest.raises(QueryError, match=message):
                client.capture(20, **fields)
        with pytest.raises(QueryError, match=">= 1"):
            client.capture(0)


async def test_sidecars_survive_a_restart_and_bad_ones_are_passed_over(short_tmp_path: Path) -> None:
    base = short_tmp_path / "base"
    script = TRAINING.replace("every=0", "every=1").replace("itertools.count()", "range(3)")
    command = [sys.executable, "-c", script, str(base), "0-a"]
    await anyio.run_process(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    bad = base / "framework/pytorch/cprofile/1-bad/train-0-stepstart-1.0_train-0-stepend-2.0"
    bad.mkdir(parents=True)
    (bad / "python_stats").write_bytes((ROOT / "tests/data/formats/cpython-3.11/python_stats").read_bytes())
    (bad / "phasewatch.json").write_text('{"pid": "text", "host": 5, "thread": "' + "x" * 500 + '"}')
    settings = settings_for(short_tmp_path, base)
    for bad_files in (1, 0):
        async with daemon_inside(settings) as (daemon, client):
            status = await until(client, lambda status: status["profiles"] == 7 and status["captures"])
            (facts,) = status["captures"]
            assert (facts["node"], facts["profiler"], facts["rank"]) == ("0-a", "cprofile", None)
            sidecars = daemon.parts().ingest.sidecars
            assert sidecars is not None
            assert sidecars.refused == bad_files
            assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


BUDGET_OF_THEN = """CREATE TABLE budget (
    grp INTEGER, label INTEGER, active BOOLEAN, base_calls BIGINT, base_primitive_calls BIGINT,
    base_self_seconds DOUBLE, base_cumulative_seconds DOUBLE, before_calls BIGINT, before_primitive_calls BIGINT,
    before_self_seconds DOUBLE, before_cumulative_seconds DOUBLE)"""


def test_a_store_of_the_first_version_gets_the_new_tables_and_keeps_its_series(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE meta (key VARCHAR PRIMARY KEY, value VARCHAR)")
        for statement in TABLES:
            if "captures" not in statement and "budget" not in statement and "versions" not in statement:
                connection.execute(statement)
        connection.execute(BUDGET_OF_THEN)
        connection.execute("INSERT INTO meta VALUES ('schema_version', '1')")
        connection.execute("INSERT INTO series VALUES (0, 'job', 'pytorch', 'cprofile', '0-a')")
        connection.execute("INSERT INTO labels VALUES (0, 'a.py:1(f)')")
        connection.execute("INSERT INTO budget VALUES (3, -1, false, 0, 0, 0, 0, 1, 1, 0.5, 0.5)")
        connection.execute("INSERT INTO budget VALUES (3, 0, true, 1, 1, 0.1, 0.2, 2, 2, 0.3, 0.4)")
    with open_store(path) as store:
        assert store.get_meta("schema_version") == str(SCHEMA_VERSION)
        assert store.read_table("SELECT * FROM captures")["series"].tolist() == []
        assert [series.node for series in store.load_catalog().series] == ["0-a"]
        functions = load_budgets(store, store.load_catalog(), limit=5).functions
        assert functions.of(3).floor == Amount(calls=1, primitive_calls=1, self_seconds=0.5, cumulative_seconds=0.5)
        ((name, state),) = functions.of(3).shown.items()
        assert functions.names.texts[name] == "a.py:1(f)"
        assert state == Shown(
            active=True,
            base=Amount(calls=1, primitive_calls=1, self_seconds=0.1, cumulative_seconds=0.2),
            before=Amount(calls=2, primitive_calls=2, self_seconds=0.3, cumulative_seconds=0.4),
        )
