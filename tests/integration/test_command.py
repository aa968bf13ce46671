"""The command as people use it: run, query, check, demo, reload."""

from __future__ import annotations

import json
import os
import pstats
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.integration.corpora import write_run
from tests.integration.daemons import DEADLINE_SECONDS, daemon_child, stop

ROOT = Path(__file__).parents[2]


def command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monitor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )


def test_every_query_prints_a_table_and_json(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    profiles = write_run(tmp_path, data_dir / "formats", nodes=2, steps=12)
    with daemon_child(short_tmp_path, tmp_path) as (process, client):
        client.jobs(fresh=True)
        socket = str(short_tmp_path / "s.sock")
        asked = {
            "step": ["--start", "1", "--end", "5"],
            "time": ["--start", "1700000000", "--end", "1800000000"],
            "modes": ["--start-mode", "train", "--end-mode", "train"],
            "pre-step-zero": [],
            "post-hook-close": [],
            "training-phases": [],
            "job-phases": [],
            "profiles": [],
            "nodes": [],
            "jobs": [],
            "status": [],
        }
        for name, arguments in asked.items():
            table = command("query", "--socket", socket, name, *arguments)
            assert (table.returncode, table.stderr) == (0, ""), name
            assert len(table.stdout.splitlines()) > 3, name
            answer = command("query", "--socket", socket, name, *arguments, "--format", "json")
            assert json.loads(answer.stdout), name
        assert f"│ training │ {profiles} " in command("query", "--socket", socket, "jobs").stdout
        csv = command("query", "--socket", socket, "job-phases", "--format", "csv", "--limit", "2").stdout
        assert csv.splitlines()[0] == ("job_phase,file,line,name,primitive_calls,calls,self_seconds,cumulative_seconds")
        assert len(csv.splitlines()) == 1 + 3 * 2
        stop(process)


def test_a_pstats_answer_loads(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=3)
    with daemon_child(short_tmp_path, tmp_path) as (process, client):
        answer = client.job_phases(fresh=True)
        _, body = client.raw("/v1/stats/job-phases", job_phase="training_loop", format="pstats")
        stop(process)
    (tmp_path / "loop.pstats").write_bytes(body)
    loaded = pstats.Stats(str(tmp_path / "loop.pstats"))
    loop = next(phase for phase in answer.phases if phase.job_phase == "training_loop")
    assert loaded.total_calls == sum(row.calls or 0 for row in loop.functions)  # type: ignore[attr-defined]


def test_nobody_listening_is_one_clear_line(short_tmp_path: Path) -> None:
    answer = command("query", "--socket", str(short_tmp_path / "none.sock"), "status")
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "start one with `phasewatch run PATH`" in answer.stderr


def test_a_refused_query_says_what_is_allowed(tmp_path: Path, short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, tmp_path) as (process, _):
        socket = str(short_tmp_path / "s.sock")
        answer = command("query", "--socket", socket, "step", "--start", "5", "--end", "1")
        stop(process)
    assert answer.returncode == 1
    assert answer.stderr == "phasewatch: end=1 is before start=5\n"


def test_run_without_a_folder_says_what_to_do() -> None:
    nothing = command("run")
    assert nothing.returncode == 2
    assert "name a folder" in nothing.stderr


def test_check_says_each_mistake_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[ingest]\nworker = 3\nworkers = "many"\n\n[[source]]\npath = "/x"\nevnts = true\n')
    answer = command("check", "-c", str(config))
    assert answer.returncode == 1
    assert answer.stderr.splitlines() == [
        f"{config}:2: unknown setting 'ingest.worker'; did you mean 'ingest.workers'?",
        f"{config}:3: ingest.workers = 'many': must be a whole number from 1 to 64",
        f"{config}:7: unknown setting 'evnts'; did you mean 'events'?",
    ]
    good = command("check", "-c", str(ROOT / "config" / "phasewatch.toml"))
    assert (good.returncode, good.stderr) == (0, "")


def test_a_reload_takes_new_settings_and_keeps_old_ones_when_they_are_wrong(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first, second = (
        write_run(base, data_dir / "formats", nodes=1, steps=steps) for base, steps in ((one, 2), (two, 3))
    )
    config = short_tmp_path / "c.toml"
    config.write_text(f'[[source]]\npath = "{one}"\njob = "one"\n')
    command_line = [sys.executable, "-m", "monitor", "run", "-c", str(config), "--listen", ""]
    command_line += ["--state-dir", str(short_tmp_path / "state"), "--socket", str(short_tmp_path / "s.sock")]
    from monitor.client import Client
    from tests.integration.daemons import wait_for_answer

    process = subprocess.Popen(command_line, stderr=subprocess.PIPE)
    try:
        client = Client(short_tmp_path / "s.sock")
        wait_for_answer(process, client)
        assert [(job.job, job.spans) for job in client.jobs(fresh=True).jobs] == [("one", first)]
        config.write_text(f'[[source]]\npath = "{one}"\njob = "one"\n[[source]]\npath = "{two}"\njob = "two"\n')
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(jobs := client.jobs(fresh=True).jobs) < 2:
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)  # a signal gives no answer
        assert [(job.job, job.spans) for job in jobs] == [("one", first), ("two", second)]
        config.write_text("nonsense = 1\n")
        process.send_signal(signal.SIGHUP)
        threading.Event().wait(0.3)
        assert [(job.job, job.spans) for job in client.jobs(fresh=True).jobs] == [("one", first), ("two", second)]
        assert stop(process) < 5
        assert process.returncode == 0
        assert process.stderr is not None
        logged = process.stderr.read().decode()
        assert "the settings stay as they were" in logged
        assert all(json.loads(line)["level"] for line in logged.splitlines())
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_the_demo_ends_by_itself_with_a_summary() -> None:
    answer = command("demo", "--steps", "25", "--delay", "0.01")
    assert answer.returncode == 0, answer.stderr
    assert "train → train" in answer.stdout
    assert "eval → eval" in answer.stdout
    # Three spans a training step, two an evaluation step, one before and one after all.
    found = re.search(r"exit code 0; (\d+) profiles stored, 0 set aside", answer.stdout)
    assert found is not None
    assert int(found[1]) == 25 * 3 + 2 * 3 * 2 + 2


def test_the_demo_samples_too() -> None:
    answer = command("demo", "--steps", "12", "--delay", "0.01", "--profiler", "pyinstrument")
    assert answer.returncode == 0, answer.stderr
    assert "0 set aside" in answer.stdout
