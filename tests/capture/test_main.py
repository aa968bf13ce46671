"""`python -m monitor.capture`: scripts and modules run as they would by themselves, without any framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.capture_on_disk import NODE, ROOT, calls, shape, spans

SCRIPT = """
import atexit, sys
name = "kept until the end"
def unit(): pass
unit()
atexit.register(lambda: sys.stdout.write(f"{name}\\n"))
print(sys.argv[1:], __name__, sys.path[0])
if sys.argv[1:] == ["raise"]:
    raise ValueError("theirs")
sys.exit(int(sys.argv[1]))
"""


def run(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monitor.capture", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_as_by_itself(tmp_path: Path, script: Path) -> None:
    done = run("--base", tmp_path, "--node", "0-test", script, "7", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"['7'] __main__ {tmp_path}\nkept until the end\n"
    (span,) = spans(tmp_path / NODE)
    assert shape(span) == "prestepzero-*-start_posthookclose-*-end"
    assert calls(tmp_path / NODE, span, "unit") == 1


def test_a_module_runs_as_by_itself(tmp_path: Path, script: Path) -> None:
    done = run("--base", tmp_path, "--node", "0-test", "-m", "train", "3", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert calls(tmp_path / NODE, spans(tmp_path / NODE)[0], "unit") == 1


def test_an_exception_of_the_script_is_its_own(tmp_path: Path, script: Path) -> None:
    done = run("--base", tmp_path, "--node", "0-test", script, "raise", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: theirs\n")
    assert len(spans(tmp_path / NODE)) == 1


def test_settings_come_from_the_environment(tmp_path: Path, script: Path) -> None:
    more = {"PHASEWATCH_CAPTURE_BASE": str(tmp_path), "PHASEWATCH_CAPTURE_NODE": "0-test"}
    assert run(script, "0", cwd=tmp_path, **more).returncode == 0
    assert len(spans(tmp_path / NODE)) == 1


def test_what_cannot_work_is_code_2_and_says_why(tmp_path: Path, script: Path) -> None:
    done = run(script, "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "python -m monitor.capture: capture: no base folder is given" in done.stderr
    done = run("--base", tmp_path, tmp_path / "nowhere.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.py: No such file or directory" in done.stderr
