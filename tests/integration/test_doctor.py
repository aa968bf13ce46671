"""`phasewatch doctor`: each check well and not well, with real folders, daemons and buckets."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from monitor import doctor
from monitor.cli import main
from monitor.config import load_settings
from monitor.doctor import Finding, check_disk, check_socket, check_source, check_state
from tests.integration.corpora import FIRST_US, STEP_US, node_folder, span_names, write_run, write_span
from tests.integration.daemons import daemon_child
from tests.sources.moto_server import MotoServer


def run(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Run the command; returns its code, and what it prints, a line each."""
    places = ["--state-dir", str(folder / "state"), "--socket", str(folder / "s.sock")]
    answer = CliRunner().invoke(main, ["doctor", *words, *places])
    return answer.exit_code, answer.output.splitlines()


def one(findings: object) -> tuple[str, str, str]:
    """Return verdict, text and advice of the only finding."""
    (finding,) = list(findings)  # type: ignore[call-overload]
    assert isinstance(finding, Finding)
    return finding.verdict, finding.text, finding.advice


def test_all_is_well_beside_a_daemon(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    profiles = write_run(tmp_path, data_dir / "formats", nodes=2, steps=8)
    with daemon_child(short_tmp_path, tmp_path) as (_, client):
        client.jobs(fresh=True)
        code, lines = run(short_tmp_path, str(tmp_path))
    assert code == 0
    assert [line[:8].strip() for line in lines] == ["ok"] * 8
    assert lines[1] == f"ok       source {tmp_path}: can be read; {profiles} profiles"
    assert lines[2] == f"ok       state folder {short_tmp_path}/state: mode 0700, writable"
    assert lines[5] == f"ok       daemon: watching {tmp_path}: {profiles} profiles stored since the start"
    assert lines[7] == "ok       clocks: 2 nodes agree"


def test_what_a_daemon_finds_wrong_is_a_problem(tmp_path: Path, short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, tmp_path / "none") as (_, client):
        client.jobs(fresh=True)
        code, lines = run(short_tmp_path, str(tmp_path))
    assert code == 4
    assert f"problem  daemon: a source cannot be read: {tmp_path}/none is not there, or may not be entered" in lines
    assert "         → phasewatch status says more" in lines


def test_without_a_daemon_there_are_warnings_only(tmp_path: Path, short_tmp_path: Path) -> None:
    code, lines = run(short_tmp_path, str(tmp_path / "none"))
    assert code == 0
    assert f"warning  source {tmp_path}/none: is not there, or user {os.geteuid()} may not enter it" in lines
    assert "         → start one: phasewatch run PATH, or systemctl start phasewatch" in lines


def test_wrong_settings_are_code_2(tmp_path: Path, short_tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[ingest]\nworkers = 0\n")
    code, lines = run(short_tmp_path, "-c", str(config))
    assert code == 2
    assert lines == [f"phasewatch: {config}:2: ingest.workers = 0: must be a whole number from 1 to 64"]


def test_a_wrong_clock_is_told_with_and_without_a_daemon(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=2, steps=8)
    sample = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    for name in list(span_names(8))[1:-1]:
        late = name
        for place in range(9):
            for offset in (0.0, 8_000.5, 15_000.25):
                at = FIRST_US + place * STEP_US + offset
                late = late.replace(f"-{at}", f"-+{at + 60e6}")
        write_span(node_folder(tmp_path, "2-late"), late.replace("+", ""), sample)
    told = "warning  clocks: the clock of node 2-late (job training) is 60.0 s ahead of the other nodes at equal steps"
    assert told in run(short_tmp_path, str(tmp_path))[1]
    with daemon_child(short_tmp_path, tmp_path) as (_, client):
        client.jobs(fresh=True)
        code, lines = run(short_tmp_path)
    assert (code, told in lines) == (0, True)


def test_folders_that_may_not_be_read_or_written_are_problems(tmp_path: Path) -> None:
    base, state = tmp_path / "profiles" / "framework", tmp_path / "state"
    base.mkdir(parents=True)
    state.mkdir(mode=0o755)
    assert one(check_state(state)) == ("warning", "others may use it (mode 0755)", f"chmod 0700 {state}")
    (tmp_path / "file").touch()
    assert one(check_state(tmp_path / "file"))[:2] == ("problem", "is no folder")
    assert one(check_state(tmp_path / "a" / "b"))[:2] == ("ok", "is made at the first start")
    for folder in (base, state):
        folder.chmod(0o000)
    tmp_path.chmod(0o755)
    code = (
        "import os, sys, pathlib; from monitor.config import load_settings; from monitor.doctor import *\n"
        "state, base = map(pathlib.Path, sys.argv[1:])\n"
        "(source,) = load_settings(None, {}, {'source.path': str(base)}).source\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for finding in (*check_state(state), *check_state(state / 'x'), *check_source(source, [])):\n"
        "    print(finding.verdict, finding.text)\n"
    )
    user = os.geteuid() or 65534
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith("pytest-"):
            folder.chmod(0o755)
    command = [sys.executable, "-c", code, str(state), str(base.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for folder in (base, state):
        folder.chmod(0o700)
    assert done.stdout.splitlines() == [
        f"problem user {user} may not write it",
        "problem cannot be looked at: Permission denied",
        f"problem {base} cannot be listed: Permission denied by user {user}",
    ], done.stderr


def test_the_place_of_the_socket_is_looked_at(short_tmp_path: Path) -> None:
    path = short_tmp_path / "s.sock"
    assert one(check_socket(path))[0] == "ok"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert one(check_socket(path))[0] == "ok"
    path.unlink()
    path.touch()
    assert one(check_socket(path)) == ("problem", "something else is there", "move it away")


@pytest.mark.parametrize(("free", "verdict"), [(2**31, "ok"), (2**29, "warning"), (2**20, "problem")])
def test_room_on_the_disk(tmp_path: Path, free: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    assert one(check_disk(tmp_path / "not" / "there"))[0] == verdict


@pytest.mark.parametrize(("limit", "verdict"), [(1024, "ok"), (512, "warning"), (128, "problem")])
def test_the_limit_of_open_files(limit: int, verdict: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        assert one(doctor.check_open_files())[:2] == (verdict, f"{limit} at the same time")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("aws_endpoint")
def test_a_bucket_is_listed(moto_server: MotoServer, parity_dir: Path) -> None:
    bucket = moto_server.make_bucket()
    moto_server.upload(bucket, "job/", parity_dir / "framework")

    def verdict(place: str) -> tuple[str, str, str]:
        return one(check_source(load_settings(None, {}, {"source.path": place}).source[0], []))

    assert verdict(f"s3://{bucket}/job") == ("ok", "can be listed", "")
    assert verdict(f"s3://{bucket}/other")[:2] == ("warning", "can be listed, and is empty")
    refused, text, advice = verdict("s3://no-such-bucket/job")
    assert refused == "problem"
    assert "no-such-bucket" in text
    assert "s3:ListBucket" in advice
