"""Spans are written by a process of their own, and by this one where that cannot be; nothing is left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.capture.folders import NodeFolder
from monitor.capture.snapshots import pack_pyinstrument
from monitor.capture.writing_process import WritingProcess, message, writing_process
from tests.capture.capture_on_disk import (
    TRAIN,
    Open,
    calls,
    run_script,
    seconds_in,
    shape,
    spans,
    spin,
    wait_until,
    work,
)

NAME = "train-0-stepstart-1.0_train-0-stepend-2.0"


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    return NodeFolder(str(tmp_path), str(tmp_path / "node"), str(tmp_path / "node" / ".tmp"))


@pytest.fixture
def session() -> bytes:
    from pyinstrument import Profiler

    profiler = Profiler(async_mode="disabled")
    profiler.start(target_description="test")
    spin(0.02)
    return message(NAME, pack_pyinstrument(profiler.stop()))


def test_the_process_draws_a_session(folder: NodeFolder, session: bytes) -> None:
    process = WritingProcess()
    assert process.ready(wait=True)
    (size_bytes,) = process.store(folder.place, [session]) or [0]
    document = json.loads(Path(folder.path, NAME, "python_stats.json").read_bytes())
    assert seconds_in(document["root_frame"], "spin") > 0.01
    assert b"<html" in Path(folder.path, NAME, "python_stats.html").read_bytes().lower()
    assert folder.size_of(NAME) == size_bytes
    running = process._process
    assert running is not None
    process.close()
    assert running.poll() == 0
    assert not process.started


def test_a_process_that_dies_is_done_without(folder: NodeFolder, session: bytes) -> None:
    process = WritingProcess()
    assert process.ready(wait=True)
    running = process._process
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    assert process.store(folder.place, [session]) is None
    assert not process.ready(wait=True)
    assert not process.started


def test_where_no_process_can_be_made_this_one_writes(open_capture: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr("monitor.capture.recorder.writing_process", process := WritingProcess())
    capture = open_capture(profiler="pyinstrument")
    with capture.step(TRAIN, 0):
        spin(0.01)
    capture.finish()
    assert len(spans(capture.node_folder)) == 2
    assert process._failed


def test_a_frozen_program_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    process = WritingProcess()
    assert not process.ready(wait=True)
    assert not process.started


def test_a_process_that_does_not_start_is_not_waited_for(
    open_capture: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stuck))
    monkeypatch.setattr("monitor.capture.recorder.writing_process", process := WritingProcess())
    capture = open_capture(overhead_share=0)
    for step in range(20):
        with capture.step(TRAIN, step):
            work(step)
    wait_until(lambda: process.started and capture.statistics().waiting == 0)
    assert not process.ready(wait=False)
    capture.finish()
    assert not process.started
    assert len(spans(capture.node_folder)) == 40


def test_spans_that_come_quickly_are_written_by_the_process(open_capture: Open) -> None:
    capture = open_capture(overhead_share=0)
    step = 0
    while not writing_process._ready:  # until then a thread writes
        with capture.step(TRAIN, step):
            work(step)
        wait_until(lambda: capture.statistics().waiting < 100)
        step += 1
    for last in range(step, step + 50):
        with capture.step(TRAIN, last):
            work(last)
    capture.finish()
    found = [span for span in spans(capture.node_folder) if shape(span).endswith("stepend")]
    assert [calls(capture.node_folder, span, "unit") for span in found] == list(range(step + 50))
    assert capture.statistics().lost == 0
    assert {path.name for path in (capture.node_folder / found[-1].name).iterdir()} == {
        "python_stats",
        "phasewatch.json",
    }


def test_few_spans_are_not_worth_a_process(open_capture: Open) -> None:
    capture = open_capture()
    capture.start()
    capture.step_start(TRAIN, 0)
    wait_until(lambda: capture.statistics().written == 1)
    capture.close()
    capture.finish()
    assert not writing_process.started


def test_the_process_stands_behind_the_training_and_does_not_hear_ctrl_c() -> None:
    process = WritingProcess()
    assert process.ready(wait=True)
    assert process._process is not None
    pid = process._process.pid
    assert os.getpgid(pid) != os.getpgrp()  # Ctrl-C is for the training
    assert os.getsid(pid) == os.getsid(0)  # in a session of its own, Linux would weigh it as much as all the training
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    process.close()


def test_the_process_ends_with_the_capture(open_capture: Open) -> None:
    capture = open_capture(profiler="pyinstrument")
    with capture.step(TRAIN, 0):
        spin(0.01)
    capture._flush(10)
    process = writing_process._process
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
from monitor.capture.writing_process import writing_process
capture = Capture(sys.argv[1], node="0-test", profiler="pyinstrument")
with capture.step(PythonProfileModes.TRAIN, 0): time.sleep(0.01)
capture._flush(10)
print(writing_process._process.pid, flush=True)
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
