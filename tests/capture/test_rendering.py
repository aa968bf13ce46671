"""Sessions are drawn in a process of their own, and in this one where that cannot be; nothing is left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyinstrument import Profiler
from pyinstrument.session import Session

from monitor.capture.profilers import renderer
from monitor.capture.rendering import RenderingProcess
from tests.capture.capture_on_disk import TRAIN, Open, run_script, seconds_in, shape, spans, spin


@pytest.fixture
def session() -> Session:
    profiler = Profiler(async_mode="disabled")
    profiler.start(target_description="test")
    spin(0.02)
    return profiler.stop()


def check(files: dict[str, bytes]) -> None:
    document = json.loads(files["python_stats.json"])
    assert seconds_in(document["root_frame"], "spin") > 0.01
    assert b"<html" in files["python_stats.html"].lower()


def test_the_process_draws_what_this_one_would(session: Session) -> None:
    drawing = RenderingProcess()
    check(drawing.render(session))
    process = drawing._process
    assert process is not None
    check(drawing.render(session))
    assert drawing._process is process
    drawing.close()
    assert process.poll() == 0


def test_a_process_that_dies_is_done_without(session: Session) -> None:
    drawing = RenderingProcess()
    check(drawing.render(session))
    process = drawing._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    check(drawing.render(session))
    check(drawing.render(session))
    assert drawing._process is None


def test_where_no_process_can_be_made_this_one_draws(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    drawing = RenderingProcess()
    check(drawing.render(session))
    assert drawing._process is None


def test_the_process_ends_with_the_capture(open_capture: Open) -> None:
    capture = open_capture(profiler="pyinstrument")
    with capture.step(TRAIN, 0):
        spin(0.01)
    capture._flush(10)
    process = renderer._process
    assert process is not None
    capture.finish()
    assert process.poll() == 0
    assert len(spans(capture.node_folder)) == 2


def test_a_forked_child_draws_for_itself_and_the_parent_goes_on(tmp_path: Path) -> None:
    script = """
import os, sys, time
from monitor.capture import Capture, PythonProfileModes
TRAIN = PythonProfileModes.TRAIN
def spin():
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end: pass
capture = Capture(sys.argv[1], node="0-test", profiler="pyinstrument")
with capture.step(TRAIN, 0): spin()
capture._flush(10)
child = os.fork()
if child == 0:
    mine = capture.sibling("child")
    with mine.step(TRAIN, 0): spin()
    mine.finish()
    os._exit(mine.statistics().lost)
assert os.waitpid(child, 0)[1] == 0
with capture.step(TRAIN, 1): spin()
capture.finish()
assert capture.statistics().lost == 0
"""
    result = run_script(script, tmp_path, flags=("-W", "error", "-W", "ignore::DeprecationWarning"))
    assert (result.returncode, result.stderr) == (0, "")
    folder = tmp_path / "framework/pytorch/pyinstrument"
    names = [shape(span) for span in spans(folder / "0-test")]
    assert [name for name in names if name.endswith("stepend")] == [
        f"train-{step}-stepstart_train-{step}-stepend" for step in range(2)
    ]
    assert len(spans(folder / "0-test-child")) == 2


def test_a_killed_training_leaves_no_process_behind(tmp_path: Path) -> None:
    script = """
import sys, time
from monitor.capture import Capture, PythonProfileModes
from monitor.capture.profilers import renderer
capture = Capture(sys.argv[1], node="0-test", profiler="pyinstrument")
with capture.step(PythonProfileModes.TRAIN, 0): time.sleep(0.01)
capture._flush(10)
print(renderer._process.pid, flush=True)
time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        drawing = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    with open(drawing, "rb", buffering=0) as handle:
        assert select.select([handle], [], [], 10)[0], "the process that draws lives on"
