"""What may go wrong around a training, injected: it trains on or ends exactly as without capture, and the loss is
counted and said once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monitor.capture import recorder
from monitor.capture.overhead import OverheadBudget
from tests.capture.capture_on_disk import NODE, ROOT, TRAIN, Open, calls, run_script, shape, spans, wait_until, work


def test_a_folder_that_may_not_be_written_costs_only_the_spans(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o555)
    tmp_path.chmod(0o755)
    script = """
import os, sys
from monitor.capture import Capture, PythonProfileModes
if os.geteuid() == 0:
    os.setuid(65534)
capture = Capture(sys.argv[1], node="0-test")
capture.start()
for step in range(5):
    with capture.step(PythonProfileModes.TRAIN, step):
        pass
capture.close()
capture.finish()
print(capture.statistics().written, capture.statistics().failed)
"""
    for folder in tmp_path.parents:
        if folder.name.startswith("pytest-"):
            folder.chmod(0o755)
    result = run_script(script, base)
    assert (result.returncode, result.stdout) == (0, "0 12\n"), result.stderr
    assert result.stderr.count("Permission denied") == 1


def test_a_folder_that_goes_away_is_not_made_again(open_capture: Open, tmp_path: Path) -> None:
    capture = open_capture()
    with capture.step(TRAIN, 0):
        pass
    capture.step_start(TRAIN, 1)
    wait_until(lambda: capture.statistics().waiting == 0)
    shutil.rmtree(tmp_path / "base")
    for step in range(2, 5):
        with capture.step(TRAIN, step):
            pass
    capture.finish()
    assert not (tmp_path / "base").exists()
    assert capture.statistics().failed > 0
    assert "The base folder is gone" in str(capture.statistics().last_failure)


def test_a_disk_that_is_full_for_a_while_costs_only_that_while(tmp_path: Path) -> None:
    script = """
import resource, sys
from monitor.capture import Capture, PythonProfileModes
capture = Capture(sys.argv[1], node="0-test")
def steps(first, last):
    for step in range(first, last):
        with capture.step(PythonProfileModes.TRAIN, step):
            pass
    capture._flush(10)
steps(0, 3)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
steps(3, 6)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
steps(6, 9)
capture.finish()
print(capture.statistics().written, capture.statistics().failed)
"""
    result = run_script(script, tmp_path)
    assert result.returncode == 0, result.stderr
    written, failed = map(int, result.stdout.split())
    assert (written + failed, failed) in {(18, 6), (18, 7), (18, 5)}
    assert all(calls(tmp_path / NODE, span, "step_start") <= 1 for span in spans(tmp_path / NODE))


class BrokenProfiler:
    """A profiler that crashes where it is told to."""

    def __init__(self, where: str) -> None:
        self._where = where

    def start(self) -> bool:
        if self._where == "start":
            raise RuntimeError("crashed in start")
        return True

    def stop(self) -> None:
        raise RuntimeError("crashed in stop")


@pytest.mark.parametrize("where", ["start", "stop"])
def test_a_crash_inside_the_profiler_costs_only_the_spans(
    open_capture: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    capture = open_capture()
    monkeypatch.setattr(recorder, "new_profiler", lambda *_: BrokenProfiler(where))
    for step in range(3):
        with capture.step(TRAIN, step):
            work(1)
    capture.finish()
    statistics = capture.statistics()
    assert (statistics.refused if where == "start" else statistics.interrupted) == 6
    assert [f"crashed in {where}" in record.message for record in caplog.records] == [True]


def test_sigterm_writes_the_last_spans_and_ends_as_it_does(tmp_path: Path) -> None:
    script = """
import sys, time
from monitor.capture import Capture, PythonProfileModes
capture = Capture(sys.argv[1], node="0-test")
capture.start()
capture.step_start(PythonProfileModes.TRAIN, 0)
print("training", flush=True)
while True:
    time.sleep(0.01)
"""
    assert end_with(tmp_path, script) == -signal.SIGTERM
    assert [shape(span) for span in spans(tmp_path / NODE)] == [
        "prestepzero-*-start_train-0-stepstart",
        "train-0-stepstart_posthookclose-*-end",
    ]


def test_a_program_that_handles_sigterm_itself_goes_on_to(tmp_path: Path) -> None:
    script = """
import signal, sys, time
from monitor.capture import Capture, PythonProfileModes
def theirs(*_):
    sys.exit(5)
signal.signal(signal.SIGTERM, theirs)
capture = Capture(sys.argv[1], node="0-test")
capture.step_start(PythonProfileModes.TRAIN, 0)
assert signal.getsignal(signal.SIGTERM) is theirs
print("training", flush=True)
while True:
    time.sleep(0.01)
"""
    assert end_with(tmp_path, script) == 5
    assert len(spans(tmp_path / NODE)) == 1


def test_a_finished_capture_gives_sigterm_back(open_capture: Open) -> None:
    before = signal.getsignal(signal.SIGTERM)
    one, two = open_capture(), open_capture(node="1-test")
    assert signal.getsignal(signal.SIGTERM) is not before
    one.finish()
    assert signal.getsignal(signal.SIGTERM) is not before
    two.finish()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_forked_child_ends_on_sigterm_by_itself(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from monitor.capture import Capture
capture = Capture(sys.argv[1], node="0-test")
capture.start()
child = os.fork()
if child == 0:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.pause()
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == signal.SIGTERM
"""
    assert run_script(script, tmp_path, flags=("-W", "ignore")).returncode == 0
    assert len(spans(tmp_path / NODE)) == 1


def end_with(tmp_path: Path, script: str) -> int:
    """Send SIGTERM to a script that says it is training; returns its exit code."""
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"training\n"
        process.send_signal(signal.SIGTERM)
        return process.wait(20)


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_moment_leaves_only_whole_span_folders(tmp_path: Path, seed: int) -> None:
    script = """
import itertools, sys
from monitor.capture import Capture, PythonProfileModes
capture = Capture(sys.argv[1], node="0-test", overhead_share=0)
print("training", flush=True)
for step in itertools.count():
    with capture.step(PythonProfileModes.TRAIN, step):
        capture.forward_end()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.02, 0.4))  # the moment is what is tested
        process.kill()
    folder = tmp_path / NODE
    found = spans(folder) if folder.exists() else []
    for span in found:
        calls(folder, span, "unit")
        assert {path.name for path in (folder / span.name).iterdir()} == {"python_stats", "phasewatch.json"}


def test_too_much_work_of_its_own_stops_capture_once(open_capture: Open, caplog: pytest.LogCaptureFixture) -> None:
    capture = open_capture(overhead_share=1e-9, overhead_window_seconds=0.001)
    for step in range(500):
        with capture.step(TRAIN, step):
            work(1)
    assert sys.getprofile() is None
    capture.close()
    capture.finish()
    statistics = capture.statistics()
    assert statistics.stopped is not None
    assert "more than overhead_share = 1e-09" in statistics.stopped
    assert statistics.written < 1000
    assert [record.message.startswith("capture stops itself: its own work took") for record in caplog.records] == [True]


def test_the_budget_judges_whole_windows_and_may_be_without_limit() -> None:
    budget = OverheadBudget(0.05, 10.0)
    assert budget.note(5.0, 100.0) is None  # a slow first step is no verdict
    assert budget.note(0.0, 104.9) is None
    verdict = budget.note(0.0, 106.0)
    assert verdict is not None
    assert verdict.startswith("its own work took 45.5% of the last 11.0 s")
    assert budget.note(0.1, 117.0) is None
    assert budget.total_seconds == pytest.approx(5.1)
    assert OverheadBudget(0.0, 1.0).note(50.0, 60.0) is None


def test_a_folder_that_grows_too_large_stops_capture(open_capture: Open, tmp_path: Path) -> None:
    earlier = tmp_path / "base" / NODE / "train-0-stepstart-1.0_train-0-stepend-2.0"
    earlier.mkdir(parents=True)
    (earlier / "python_stats").write_bytes(b"x" * 50_000)
    capture = open_capture(max_bytes=60_000)
    step = 0
    while capture.statistics().stopped is None:
        with capture.step(TRAIN, step):
            work(1)
        wait_until(lambda: capture.statistics().waiting == 0)
        step += 1
        assert step < 1000
    assert "more than max_bytes = 60000" in str(capture.statistics().stopped)
    capture.finish()
    written = capture.statistics().written_bytes
    assert 10_000 < written < 20_000
