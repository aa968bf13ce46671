"""The writer on real folders: whole spans, a bounded queue, failures that cost one span, deadlines that hold."""

from __future__ import annotations

import cProfile
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.capture.snapshots import Pack, Packed, pack_cprofile
from monitor.capture.writer import PendingSpan, SpanWriter
from monitor.capture.writing_process import WritingProcess
from monitor.spans import Moment, PythonProfileModes, StepPhase
from tests.capture.capture_on_disk import wait_until

NODE = Path("framework/pytorch/cprofile/0-test")


def packed(text: bytes = b"data", **more: bytes) -> Packed:
    """A span with a text for a profile."""
    kind, values, _ = pack_cprofile(cProfile.Profile())
    return kind, values, {"python_stats": text, **more}


def pending(step: int, pack: Pack = packed) -> PendingSpan:
    """A span of one second."""
    start, end = (
        Moment(mode=PythonProfileModes.TRAIN, step=step, phase=phase, time_us=step * 1e6 + add)
        for phase, add in ((StepPhase.STEP_START, 0.0), (StepPhase.STEP_END, 1e6))
    )
    return PendingSpan(start=start, end=end, pack=pack)


def name(step: int) -> str:
    return f"train-{step}-stepstart-{step * 1e6}_train-{step}-stepend-{step * 1e6 + 1e6}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


class Gate:
    """A span that waits to be let through, as one on a stuck disk would."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> Packed:
        self.reached.set()
        assert self.opened.wait(30)
        return packed()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_a_span_is_written_whole_and_nothing_else_stays(base: Path) -> None:
    writer = SpanWriter(base, base / NODE)
    writer.submit(pending(3, lambda: packed(b"{}", second=b"<html>")))
    assert writer.close()
    assert [path.name for path in (base / NODE).iterdir()] == [name(3)]
    assert {path.name: path.read_bytes() for path in (base / NODE / name(3)).iterdir()} == {
        "python_stats": b"{}",
        "second": b"<html>",
    }
    assert (writer.statistics().written, writer.statistics().written_bytes) == (1, 8)


def test_the_folder_in_the_making_holds_no_data_file_at_the_depth_of_a_span(base: Path) -> None:
    seen: list[str] = []

    def look() -> Packed:
        seen.extend(sorted(path.name for path in (base / NODE).iterdir()))
        return packed()

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


def fail() -> Packed:
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
    writer.submit(pending(0, lambda: packed(b"other")))
    assert writer.close()
    assert [path.name for path in (base / NODE).iterdir()] == [name(0)]
    assert (base / NODE / name(0) / "python_stats").read_bytes() == b"data"
    assert writer.statistics().failed == 1


@pytest.fixture
def process() -> Iterator[WritingProcess]:
    process = WritingProcess()
    assert process.ready(wait=True)
    yield process
    process.close()


def test_a_process_writes_the_same_and_counts_what_fails(base: Path, process: WritingProcess) -> None:
    (base / NODE / name(3)).mkdir(parents=True)
    (base / NODE / name(3) / "python_stats").write_bytes(b"there")
    writer = SpanWriter(base, base / NODE, process=process)
    for step, pack in enumerate((packed, fail, packed, packed)):
        writer.submit(pending(step, pack))
    writer.submit(pending(-1))
    assert writer.flush(10.0)
    assert process.ready(wait=False)
    assert {path.name: (path / "python_stats").read_bytes() for path in (base / NODE).glob("train-*")} == {
        name(0): b"data",
        name(2): b"data",
        name(3): b"there",
    }
    assert (writer.statistics().written, writer.statistics().failed) == (2, 3)
    assert writer.statistics().folder_bytes == 8 + 5
    assert writer.close()
    assert not (base / NODE / f".tmp-{os.getpid()}").exists()


def test_a_disk_that_is_full_for_a_while_costs_only_that_while(base: Path, process: WritingProcess) -> None:
    assert process._process is not None
    writer = SpanWriter(base, base / NODE, process=process)
    for step, most in enumerate((resource.RLIM_INFINITY, 3, resource.RLIM_INFINITY)):
        resource.prlimit(process._process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        writer.submit(pending(step))
        assert writer.flush(10.0)
    assert "File too large" in str(writer.statistics().last_failure)
    assert writer.close()
    assert sorted(path.name for path in (base / NODE).iterdir()) == [name(0), name(2)]


def test_a_process_that_is_killed_costs_no_span(
    base: Path, process: WritingProcess, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SpanWriter(base, base / NODE, process=process)
    writer.submit(pending(0))
    assert writer.flush(10.0)
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    for step in range(1, 40):
        writer.submit(pending(step))
    os.kill(process._process.pid, signal.SIGKILL)
    assert writer.close(10.0)
    assert sorted(path.name for path in (base / NODE).iterdir()) == sorted(name(step) for step in range(40))
    assert (writer.statistics().written, writer.statistics().failed) == (40, 0)
    assert [record.message.startswith("the process that writes spans is gone") for record in caplog.records] == [True]


def test_spans_that_the_process_wrote_before_it_was_gone_count_once(base: Path) -> None:
    class Gone(WritingProcess):
        """Writes one span and half of another, and does not answer."""

        started = True

        def ready(self, *, wait: bool) -> bool:
            return True

        def store(self, place: object, spans: list[bytes]) -> None:
            writer._folder.store(name(0), {"python_stats": b"first"})
            (base / NODE / f".tmp-{os.getpid()}" / name(1)).mkdir()

    writer = SpanWriter(base, base / NODE, process=Gone())
    for step in range(3):
        writer.submit(pending(step))
    assert writer.close()
    assert (base / NODE / name(0) / "python_stats").read_bytes() == b"first"
    assert sorted(path.name for path in (base / NODE).iterdir()) == [name(0), name(1), name(2)]
    assert (writer.statistics().written, writer.statistics().failed) == (3, 0)


def test_a_queue_that_fills_is_emptied_without_waiting_for_more(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.capture.writer.GATHER_SECONDS", 60)
    writer = SpanWriter(base, base / NODE, queue_spans=8)
    for step in range(6):
        writer.submit(pending(step))
    wait_until(lambda: writer.statistics().written >= 4)
    assert writer.close()


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
