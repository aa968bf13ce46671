"""The writer on real folders: whole spans, a bounded queue, failures that cost one span, deadlines that hold."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.capture.profilers import Files, Render
from monitor.capture.writer import PendingSpan, SpanWriter
from monitor.spans import Moment, PythonProfileModes, StepPhase

NODE = Path("framework/pytorch/cprofile/0-test")


def data() -> Files:
    return {"python_stats": b"data"}


def pending(step: int, render: Render = data) -> PendingSpan:
    """A span of one second."""
    start, end = (
        Moment(mode=PythonProfileModes.TRAIN, step=step, phase=phase, time_us=step * 1e6 + add)
        for phase, add in ((StepPhase.STEP_START, 0.0), (StepPhase.STEP_END, 1e6))
    )
    return PendingSpan(start=start, end=end, render=render)


def name(step: int) -> str:
    return f"train-{step}-stepstart-{step * 1e6}_train-{step}-stepend-{step * 1e6 + 1e6}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


class Gate:
    """A render function that waits to be let through, as one on a stuck disk would."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> Files:
        self.reached.set()
        assert self.opened.wait(30)
        return data()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_a_span_is_written_whole_and_nothing_else_stays(base: Path) -> None:
    writer = SpanWriter(base, base / NODE)
    writer.submit(pending(3, lambda: {"python_stats.json": b"{}", "python_stats.html": b"<html>"}))
    assert writer.close()
    assert [path.name for path in (base / NODE).iterdir()] == [name(3)]
    assert {path.name: path.read_bytes() for path in (base / NODE / name(3)).iterdir()} == {
        "python_stats.json": b"{}",
        "python_stats.html": b"<html>",
    }
    assert (writer.statistics().written, writer.statistics().written_bytes) == (1, 8)


def test_the_folder_in_the_making_holds_no_data_file_at_the_depth_of_a_span(base: Path) -> None:
    seen: list[str] = []

    def look() -> Files:
        seen.extend(sorted(path.name for path in (base / NODE).iterdir()))
        return data()

    writer = SpanWriter(base, base / NODE)
    writer.submit(pending(0))
    writer.submit(pending(1, look))
    writer.close()
    assert seen == [f".tmp-{os.getpid()}", name(0)]


def test_a_full_queue_drops_and_counts_and_never_waits(
    base: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SpanWriter(base, base / NODE, queue_spans=2)
    writer.submit(pending(0, gate))
    assert gate.reached.wait(10)
    for step in range(1, 6):
        writer.submit(pending(step))
    assert (writer.statistics().dropped, writer.statistics().waiting) == (3, 3)
    gate.opened.set()
    assert writer.close()
    assert sorted(path.name for path in (base / NODE).iterdir()) == [name(0), name(1), name(2)]
    (record,) = caplog.records
    assert record.message.startswith("2 spans wait to be written to ")
    assert "every=" in record.message


def fail() -> Files:
    raise ZeroDivisionError("theirs")


def test_a_span_that_fails_costs_only_itself(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = SpanWriter(base, base / NODE)
    writer.submit(pending(0, fail))
    writer.submit(pending(-1))
    writer.submit(pending(1))
    assert writer.close()
    assert [path.name for path in (base / NODE).iterdir()] == [name(1)]
    statistics = writer.statistics()
    assert (statistics.written, statistics.failed) == (1, 2)
    assert "'train--1-stepstart-" in str(statistics.last_failure)
    assert ["ZeroDivisionError: theirs" in record.message for record in caplog.records] == [True]


def test_a_span_that_is_there_already_is_not_touched(base: Path) -> None:
    writer = SpanWriter(base, base / NODE)
    writer.submit(pending(0))
    writer.submit(pending(0, lambda: {"python_stats": b"other"}))
    assert writer.close()
    assert [path.name for path in (base / NODE).iterdir()] == [name(0)]
    assert (base / NODE / name(0) / "python_stats").read_bytes() == b"data"
    assert writer.statistics().failed == 1


def test_two_writers_of_one_node_do_not_disturb_each_other(base: Path) -> None:
    one, two = (SpanWriter(base, base / NODE) for _ in range(2))
    one.submit(pending(0))
    assert one.close()
    two.submit(pending(1))
    assert two.close()
    assert sorted(path.name for path in (base / NODE).iterdir()) == [name(0), name(1)]


def test_flush_waits_for_what_was_submitted_and_keeps_its_deadline(base: Path, gate: Gate) -> None:
    writer = SpanWriter(base, base / NODE)
    assert writer.flush(0.0)
    writer.submit(pending(0, gate))
    assert not writer.flush(0.01)
    gate.opened.set()
    assert writer.flush(10.0)
    assert writer.statistics().written == 1
    assert writer.close()


def test_close_keeps_its_deadline_and_says_what_is_lost(
    base: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SpanWriter(base, base / NODE)
    writer.submit(pending(0, gate))
    assert gate.reached.wait(10)
    writer.submit(pending(1))
    assert not writer.close(0.01)
    assert "were still not written" in caplog.text
    writer.submit(pending(2))
    gate.opened.set()
    assert writer.flush(10.0)
    assert not (base / NODE / name(2)).exists()


def test_without_a_thread_a_span_is_there_when_submit_returns(base: Path) -> None:
    writer = SpanWriter(base, base / NODE, threaded=False)
    before = threading.active_count()
    writer.submit(pending(0))
    assert (base / NODE / name(0) / "python_stats").read_bytes() == b"data"
    assert threading.active_count() == before
    assert writer.close()
