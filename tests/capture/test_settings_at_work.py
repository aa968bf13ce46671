"""Settings at work: clocks, intervals, schedules, nodes, the sidecar file, and captures that are switched off."""

from __future__ import annotations

import json
import marshal
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import monitor
from monitor.capture import Capture, CaptureSettings
from monitor.capture.timers import TIMERS
from monitor.errors import ConfigError
from tests.capture.capture_on_disk import EVAL, TRAIN, Open, calls, shape, spans, spin, work


def seconds(folder: Path, name: str, function: str) -> float:
    """Cumulative seconds of a function in a span."""
    stats = marshal.loads((folder / name / "python_stats").read_bytes())
    return sum(float(numbers[3]) for (_, _, called), numbers in stats.items() if called == function)


def compute_then_wait() -> None:
    end = time.thread_time() + 0.1  # of the processor, however busy the machine is
    while time.thread_time() < end:
        pass
    time.sleep(0.3)


@pytest.mark.parametrize(
    ("timer", "least", "most"),
    [
        ("wall", 0.39, 5.0),
        ("total_time", 0.36, 5.0),
        ("thread_cpu_time", 0.09, 0.25),
        ("cpu_time", 0.05, 0.25),
        ("off_cpu_time", 0.2, 5.0),
    ],
)
def test_the_clock_decides_what_is_counted(open_capture: Open, timer: str, least: float, most: float) -> None:
    capture = open_capture(timer=timer)
    with capture.step(TRAIN, 0):
        compute_then_wait()
    capture.finish()
    span = spans(capture.node_folder)[0]
    assert least <= seconds(capture.node_folder, span.name, "compute_then_wait") <= most
    assert sidecar(capture.node_folder, span.name)["timer"] == timer


def test_every_clock_has_a_name_and_goes_on() -> None:
    for timer in TIMERS.values():
        if timer.read is not None:
            assert timer.read() <= timer.read() or timer is TIMERS["off_cpu_time"]


def test_sagemakers_default_clock_changes_with_the_step(open_capture: Open) -> None:
    capture = open_capture(timer="default", steps="9-11")
    for step in range(8, 13):
        with capture.step(TRAIN, step):
            pass
    capture.finish()
    inside = [span for span in spans(capture.node_folder) if shape(span).endswith("stepend")]
    timers = [sidecar(capture.node_folder, span.name)["timer"] for span in inside]
    assert timers == ["total_time", "cpu_time", "off_cpu_time"]


def sidecar(folder: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / name / "phasewatch.json").read_bytes())
    return found


def test_the_sidecar_says_what_capture_costs_once_that_is_known(open_capture: Open) -> None:
    capture = open_capture(overhead_share=0, overhead_window_seconds=0.01)
    for step in range(3):
        with capture.step(TRAIN, step):
            spin(0.02)
    capture.finish()
    ratios = [sidecar(capture.node_folder, span.name)["overhead_ratio"] for span in spans(capture.node_folder)]
    assert ratios[0] is None
    assert isinstance(ratios[-1], float)
    assert 0 < ratios[-1] < 1


def test_the_sidecar_says_what_the_layout_cannot(open_capture: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    capture = open_capture(profiler="pyinstrument", interval_seconds=0.002)
    with capture.step(TRAIN, 0):
        spin(0.02)
    capture.finish()
    facts = sidecar(capture.node_folder, spans(capture.node_folder)[0].name)
    libraries = facts.pop("libraries")
    assert isinstance(libraries, dict)
    assert "pyinstrument" in libraries
    assert facts == {
        "format": 1,
        "phasewatch": monitor.__version__,
        "profiler": "pyinstrument",
        "timer": None,
        "interval_seconds": 0.002,
        "thread": "MainThread",
        "thread_id": threading.get_native_id(),
        "trigger": None,
        "overhead_ratio": None,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": "CPython",
        "rank": 3,
        "world_size": 8,
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }


def test_modes_and_ranges_are_kept_to(open_capture: Open) -> None:
    capture = open_capture(modes=["eval"], steps=[(1, 2)])
    for step in range(4):
        with capture.step(TRAIN, step):
            work(1)
        with capture.step(EVAL, step):
            work(10)
    capture.finish()
    inside = [span for span in spans(capture.node_folder) if shape(span).endswith("stepend")]
    assert [shape(span) for span in inside] == [f"eval-{step}-stepstart_eval-{step}-stepend" for step in (1, 2)]
    assert [calls(capture.node_folder, span, "unit") for span in inside] == [10, 10]


def test_a_capture_that_is_not_enabled_leaves_no_trace(open_capture: Open, tmp_path: Path) -> None:
    capture = open_capture(enabled=False)
    capture.start()
    with capture.step(TRAIN, 0):
        assert sys.getprofile() is None
    capture.close()
    capture.finish()
    assert not (tmp_path / "base").exists()


def test_without_a_base_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASEWATCH_CAPTURE_BASE", str(tmp_path))
    monkeypatch.setenv("PHASEWATCH_CAPTURE_NODE", "5-here")
    capture = Capture(framework="tensorflow")
    capture.start()
    capture.finish()
    assert len(spans(tmp_path / "framework/tensorflow/cprofile/5-here")) == 1


def test_with_a_base_the_code_alone_decides(open_capture: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASEWATCH_CAPTURE_EVERY", "7")
    assert open_capture().settings.every == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timer": "moon"}, "timer 'moon' is none of wall"),
        ({"overhead_share": -0.1}, "overhead_share is -0.1: it must not be negative"),
        ({"evry": 2}, "there is no setting 'evry'"),
        ({"interval_seconds": "fast"}, "could not convert"),
    ],
)
def test_settings_that_cannot_work_are_refused(open_capture: Open, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_capture(**settings)


def test_the_rank_that_a_framework_tells_wins_and_may_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for torch.distributed: the real one is asked in the tests of real training."""
    monkeypatch.delenv("RANK", raising=False)
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: False, get_rank=lambda: 2, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    capture = Capture(tmp_path)
    capture.start()
    assert capture.node == f"{os.getpid()}-{socket.gethostname()}".replace("_", "-")
    distributed.is_initialized = lambda: True
    capture.step_start(TRAIN, 0)
    distributed.is_initialized = lambda: False
    capture.finish()
    folder = tmp_path / "framework/pytorch/cprofile" / f"2-{socket.gethostname()}".replace("_", "-")
    assert capture.node_folder == folder
    assert len(spans(folder)) == 2


def test_settings_can_be_sent_to_another_process(open_capture: Open) -> None:
    settings = open_capture(steps="1-2", modes="train").settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert isinstance(settings, CaptureSettings)
