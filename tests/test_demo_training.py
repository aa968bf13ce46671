"""The demo's training run as a child process: progress, spans, the step from which it is slow, and how it ends."""

from __future__ import annotations

import json
import marshal
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from monitor.spans import PythonProfileModes, Span, parse_span_name

ROOT = Path(__file__).parents[1]
BATCH = 256
DEADLINE_SECONDS = 30


def command(base: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "monitor.demo_training", str(base), *arguments]


@contextmanager
def training(base: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run in progress: its first line of progress has been read."""
    with subprocess.Popen(
        command(base, *arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["step"] == 10
            yield process
        finally:
            process.kill()


def spans(folder: Path) -> list[Span]:
    found = [parse_span_name(path.name) for path in folder.iterdir()]
    return sorted(found, key=lambda span: span.start.time_us)


def calls(folder: Path, span: Span, function: str) -> int:
    stats = marshal.loads((folder / span.name / "python_stats").read_bytes())
    return sum(numbers[1] for (_, _, name), numbers in stats.items() if name == function)


def test_the_run_reports_progress_and_leaves_every_span(tmp_path: Path) -> None:
    result = subprocess.run(
        command(tmp_path, "--steps", "25", "--node", "7-test", "--delay", "0"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 25]
    assert lines[-1]["loss"] < lines[0]["loss"]

    folder = tmp_path / "framework/pytorch/cprofile/7-test"
    found = spans(folder)
    # Three spans a training step, two an evaluation step, one before and one after all.
    assert len(found) == 25 * 3 + 2 * 3 * 2 + 2
    assert found[0].job_phase == "initialization"
    assert [span.job_phase for span in found[-2:]] == ["finalization"] * 2
    # The slow preparation shows exactly from the middle of the run on, and only while training.
    slow = {span.start.step: calls(folder, span, "clip_row") for span in found if calls(folder, span, "clip_row")}
    assert slow == dict.fromkeys(range(12, 25), BATCH)
    forward = [span for span in found if calls(folder, span, "forward")]
    assert sum(span.start.mode is PythonProfileModes.EVAL for span in forward) == 6
    assert all(calls(folder, span, "forward") == 1 for span in forward)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_with_all_spans_written(tmp_path: Path, number: signal.Signals) -> None:
    with training(tmp_path, "--steps", "1000000", "--delay", "0.01") as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert (process.returncode, errors) == (0, "")
    folder = tmp_path / "framework/pytorch/cprofile/0-demo"
    found = spans(folder)
    assert found[-1].end.phase.value == "end"
    assert all((folder / span.name / "python_stats").stat().st_size for span in found)
    # No span is missing: each one starts where the one before it ended.
    assert all(
        (one.end.mode, one.end.step, one.end.phase) == (two.start.mode, two.start.step, two.start.phase)
        for one, two in pairwise(found[:-1])
    )


def test_a_signal_interrupts_the_pause_between_steps(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--steps", "10", "--delay", "600"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        folder = tmp_path / "framework/pytorch/cprofile/0-demo"
        while process.poll() is None and not any(folder.glob("train-0-forwardpassend-*")):
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0
    assert json.loads(output)["step"] == 1


def test_the_run_ends_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    with training(tmp_path, "--steps", "1000000", "--delay", "0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stderr.read() == ""
    assert spans(tmp_path / "framework/pytorch/cprofile/0-demo")[-1].end.phase.value == "end"


def test_the_run_ends_with_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "framework/pytorch/cprofile/0-demo"
    script = """
import os, pathlib, subprocess, sys
subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
while not pathlib.Path(sys.argv[1]).exists(): os.sched_yield()
os._exit(0)
"""
    run = command(tmp_path, "--steps", "1000000", "--delay", "0.01")
    parent = subprocess.run([sys.executable, "-c", script, str(folder), *run], cwd=ROOT, check=True)
    assert parent.returncode == 0
    end = time.monotonic() + DEADLINE_SECONDS
    while not any(folder.glob("prestepzero-?-end-*")):
        assert time.monotonic() < end
        os.sched_yield()


def test_the_run_can_be_sampled(tmp_path: Path) -> None:
    result = subprocess.run(
        command(tmp_path, "--steps", "2", "--profiler", "pyinstrument", "--delay", "0.01"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    folder = tmp_path / "framework/pytorch/pyinstrument/0-demo"
    found = spans(folder)
    assert len(found) == 2 * 3 + 2
    for span in found:
        assert "root_frame" in json.loads((folder / span.name / "python_stats.json").read_text())
