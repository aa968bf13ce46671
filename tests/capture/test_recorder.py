"""Transitions on real folders: names and order of spans, and call counts known by construction."""

from __future__ import annotations

import cProfile
import itertools
import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from monitor.capture import Capture
from monitor.errors import ConfigError
from monitor.layout import locate
from tests.capture.capture_on_disk import EVAL, TRAIN, Open, calls, seconds_in, shape, spans, spin, wait_until, work


def test_each_transition_ends_a_span_and_starts_the_next(open_capture: Open) -> None:
    capture = open_capture(clock=map(float, itertools.count(1)).__next__)
    capture.start()
    with capture.step(TRAIN, 0):
        capture.forward_end()
    with capture.step(EVAL, 0):
        pass
    capture.step_start(TRAIN, 1)
    capture.close()
    capture.finish()
    assert [span.name for span in spans(capture.node_folder)] == [
        "prestepzero-*-start-1000000.0_train-0-stepstart-2000000.0",
        "train-0-stepstart-3000000.0_train-0-forwardpassend-4000000.0",
        "train-0-forwardpassend-5000000.0_train-0-stepend-6000000.0",
        "train-0-stepend-7000000.0_eval-0-stepstart-8000000.0",
        "eval-0-stepstart-9000000.0_eval-0-stepend-10000000.0",
        "eval-0-stepend-11000000.0_train-1-stepstart-12000000.0",
        "train-1-stepstart-13000000.0_posthookclose-*-end-14000000.0",
        "prestepzero-*-end-15000000.0_posthookclose-*-end-16000000.0",
    ]


def test_files_stand_where_the_layout_says(open_capture: Open, tmp_path: Path) -> None:
    capture = open_capture(framework="tensorflow", node="3-algo-1")
    capture.start()
    capture.finish()
    (path,) = (tmp_path / "base").rglob("python_stats")
    key = locate(str(path)).key
    assert (key.framework, key.profiler, key.node) == ("tensorflow", "cprofile", "3-algo-1")
    assert path.relative_to(tmp_path / "base").parts[:4] == ("framework", "tensorflow", "cprofile", "3-algo-1")


def test_every_span_holds_exactly_its_own_calls(open_capture: Open) -> None:
    capture = open_capture()
    capture.start()
    work(3)
    for step in range(4):
        capture.step_start(TRAIN, step)
        work(10 + step)
        capture.forward_end()
        work(20 + step)
    capture.close()
    work(5)
    capture.finish()
    found = spans(capture.node_folder)
    expected = [3, *itertools.chain.from_iterable((10 + step, 20 + step) for step in range(4)), 5]
    assert [calls(capture.node_folder, span, "unit") for span in found] == expected
    assert capture.statistics().written == len(expected)
    assert capture.statistics().lost == capture.statistics().waiting == 0


def test_only_chosen_steps_are_profiled(open_capture: Open) -> None:
    capture = open_capture(every=3)
    capture.start()
    for step in range(7):
        with capture.step(TRAIN, step):
            work(step + 1)
    capture.finish()
    inside = [span for span in spans(capture.node_folder) if shape(span).endswith("stepend")]
    assert [(span.start.step, calls(capture.node_folder, span, "unit")) for span in inside] == [(0, 1), (3, 4), (6, 7)]


def test_training_needs_neither_start_nor_close(open_capture: Open) -> None:
    capture = open_capture()
    capture.forward_end()
    capture.step_end()
    capture.step_start(TRAIN, 0)
    capture.start()
    capture.finish()
    assert [shape(span) for span in spans(capture.node_folder)] == ["train-0-stepstart_posthookclose-*-end"]


def test_transitions_after_closing_do_nothing(open_capture: Open) -> None:
    capture = open_capture()
    capture.start()
    capture.close()
    capture.close()
    with capture.step(TRAIN, 0):
        capture.forward_end()
    capture.finish()
    capture.finish()
    capture.step_start(TRAIN, 1)
    assert [shape(span) for span in spans(capture.node_folder)] == [
        "prestepzero-*-start_posthookclose-*-end",
        "prestepzero-*-end_posthookclose-*-end",
    ]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_in_a_step_leaves_the_profiler_off(open_capture: Open, kind: type[BaseException]) -> None:
    capture = open_capture()

    def broken_step() -> None:
        with capture.step(TRAIN, 0):
            work(2)
            raise kind

    with pytest.raises(kind):
        broken_step()
    assert sys.getprofile() is None
    cProfile.Profile().runcall(work, 1)  # from 3.12 this is refused while a profiler of ours is on
    work(100)
    with capture.step(TRAIN, 1):
        work(4)
    capture.finish()
    found = spans(capture.node_folder)
    assert [(shape(span), calls(capture.node_folder, span, "unit")) for span in found] == [
        ("train-0-stepstart_train-0-stepend", 2),
        ("train-1-stepstart_train-1-stepend", 4),
        ("train-1-stepend_posthookclose-*-end", 0),
    ]


def test_a_base_that_cannot_be_made_costs_only_the_spans(
    open_capture: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    capture = open_capture(base=tmp_path / "file" / "base")
    capture.start()
    for step in range(3):
        with capture.step(TRAIN, step):
            work(1)
    capture.finish()
    assert capture.statistics().failed == 7
    assert "Not a directory" in str(capture.statistics().last_failure)
    (record,) = caplog.records
    assert record.name == "phasewatch.capture"
    assert "cannot write a span to" in record.message


def test_the_node_folder_is_made_again_and_the_base_is_not(open_capture: Open, tmp_path: Path) -> None:
    capture = open_capture()
    capture.start()
    capture.step_start(TRAIN, 0)
    wait_until(lambda: capture.statistics().written == 1)
    shutil.rmtree(capture.node_folder)
    capture.step_end()
    wait_until(lambda: capture.statistics().written == 2)
    shutil.rmtree(tmp_path / "base")
    capture.step_start(TRAIN, 1)
    capture.finish()
    assert not (tmp_path / "base").exists()
    assert capture.statistics().failed == 2
    assert "The base folder is gone" in str(capture.statistics().last_failure)


def test_pyinstrument_sees_the_function_that_takes_the_time(open_capture: Open) -> None:
    capture = open_capture(profiler="pyinstrument")
    capture.start()
    with capture.step(TRAIN, 0):
        spin(0.05)
    capture.finish()
    _, step, _ = (capture.node_folder / span.name for span in spans(capture.node_folder))
    session = json.loads((step / "python_stats.json").read_text())
    assert seconds_in(session["root_frame"], "spin") > 0.8 * session["root_frame"]["time"] > 0.03
    assert (step / "python_stats.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profiler": "perf"}, "profiler 'perf' is none of cprofile, pyinstrument"),
        ({"node": "a/b"}, "the node 'a/b' cannot name a folder"),
        ({"framework": ".."}, "the framework '..' cannot name a folder"),
        ({"every": -1}, "every is -1: use 0 for no step or a positive number"),
        ({"queue_spans": 0}, "queue_spans is 0: it must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(open_capture: Open, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_capture(**settings)


def test_the_node_is_rank_and_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    host = socket.gethostname().replace("_", "-")
    assert finished_node(tmp_path) == f"{os.getpid()}-{host}"
    monkeypatch.setenv("SLURM_PROCID", "5")
    assert finished_node(tmp_path) == f"5-{host}"
    monkeypatch.setenv("RANK", "not a number")
    assert finished_node(tmp_path) == f"5-{host}"
    monkeypatch.setenv("RANK", "3")
    assert finished_node(tmp_path) == f"3-{host}"


def finished_node(base: Path) -> str:
    capture = Capture(base)
    capture.finish()
    return capture.node
