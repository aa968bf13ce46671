"""The units in systemd/ are sound, little is exposed by them, and their commands start a daemon."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.client import Client
from tests.integration.daemons import DEADLINE_SECONDS, stop, wait_for_answer
from tests.integration.service_manager import tool

ROOT = Path(__file__).parents[1]
UNITS = ROOT / "systemd"
SERVICES = ("phasewatch.service", "phasewatch@.service")
PROGRAM = "/opt/phasewatch/bin/phasewatch"
MOST_EXPOSURE = "20"
"""Tenths: 2.0."""


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with a program that is there."""
    folder = tmp_path / "units"
    folder.mkdir()
    program = tmp_path / "phasewatch"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m monitor "$@"\n')
    program.chmod(0o755)
    for unit in UNITS.glob("phasewatch*.*"):
        (folder / unit.name).write_text(unit.read_text().replace(PROGRAM, str(program)))
    return folder


@pytest.mark.parametrize("unit", [*SERVICES, "phasewatch.socket"])
def test_systemd_finds_nothing_wrong_with_a_unit(units: Path, unit: str) -> None:
    done = run(tool("systemd-analyze"), "verify", f"./{unit}", cwd=units)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_would_find_what_is_wrong_with_a_unit(units: Path) -> None:
    unit = units / "phasewatch.service"
    unit.write_text(unit.read_text().replace("WatchdogSec", "WatchdogSeconds"))
    assert "WatchdogSeconds" in run(tool("systemd-analyze"), "verify", "./phasewatch.service", cwd=units).stderr


@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_is_exposed_to_little(units: Path, unit: str) -> None:
    command = (tool("systemd-analyze"), "security", "--offline=true", f"--threshold={MOST_EXPOSURE}", units / unit)
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert found is not None
    assert float(found[1]) <= int(MOST_EXPOSURE) / 10


def test_the_unit_of_one_job_differs_in_names_only() -> None:
    one, many = ((UNITS / unit).read_text().splitlines() for unit in SERVICES)
    changed = {line[2:].partition("=")[0] for line in difflib.ndiff(one, many) if line[0] in "+-"}
    comment = "# One daemon for each job: `systemctl start phasewatch@resnet50` reads /etc/phasewatch/resnet50.toml."
    assert changed == {comment, "Description", "After", "ExecStart", "StateDirectory", "RuntimeDirectory"}


def test_user_and_folder_of_settings_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    made = run(tool("systemd-sysusers"), "--dry-run", f"--root={tmp_path}", UNITS / "sysusers.d" / "phasewatch.conf")
    assert (made.returncode, made.stderr.count("user 'phasewatch'")) == (0, 1), made.stderr
    (tmp_path / "etc" / "group").write_text("root:x:0:\nphasewatch:x:999:\n")
    (tmp_path / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\n")
    read = run(tool("systemd-tmpfiles"), "--clean", f"--root={tmp_path}", UNITS / "tmpfiles.d" / "phasewatch.conf")
    assert (read.returncode, read.stderr) == (0, "")


def test_the_command_of_a_unit_starts_a_daemon(tmp_path: Path, short_tmp_path: Path) -> None:
    text = (UNITS / "phasewatch@.service").read_text()
    (line,) = (line.removeprefix("ExecStart=") for line in text.splitlines() if line.startswith("ExecStart="))
    config = tmp_path / "resnet50.toml"
    config.write_text(f'[daemon]\nlisten = ""\n[[source]]\npath = "{tmp_path / "profiles"}"\n')
    replaced = {PROGRAM: f"{sys.executable} -m monitor", "/etc/phasewatch/%i.toml": str(config), "%I": "resnet50"}
    replaced |= {"${STATE_DIRECTORY}": str(short_tmp_path / "s"), "${RUNTIME_DIRECTORY}": str(short_tmp_path)}
    for old, new in replaced.items():
        line = line.replace(old, new)
    process = subprocess.Popen(line.split(), env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    try:
        client = Client(short_tmp_path / "phasewatch.sock")
        wait_for_answer(process, client)
        assert [source["job"] for source in client.status()["sources"]] == ["resnet50"]
        stop(process)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
