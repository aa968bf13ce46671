"""Profilers that are not ours: whichever was on goes on, and what that costs us is counted."""

from __future__ import annotations

import cProfile
import sys
from types import FrameType

import pytest

from monitor.capture.profilers import SHARED_STACK
from tests.capture.capture_on_disk import TRAIN, Open, calls, shape, spans, work


def test_a_profiler_that_is_already_on_goes_on_alone(open_capture: Open, caplog: pytest.LogCaptureFixture) -> None:
    capture = open_capture()
    theirs = cProfile.Profile()
    theirs.enable()
    for step in range(3):
        with capture.step(TRAIN, step):
            work(5)
    theirs.disable()
    capture.step_start(TRAIN, 3)
    work(7)
    capture.finish()
    theirs.create_stats()
    assert [numbers[1] for (_, _, name), numbers in theirs.stats.items() if name == "unit"] == [15]
    (span,) = spans(capture.node_folder)
    assert calls(capture.node_folder, span, "unit") == 7
    assert capture.statistics().refused == 6
    assert [record.message for record in caplog.records] == [
        "a span cannot be profiled: another profiler is active. Later ones that cannot will be counted only"
    ]


def test_a_profiler_started_inside_a_span_goes_on(open_capture: Open) -> None:
    capture = open_capture()
    theirs = cProfile.Profile()
    capture.step_start(TRAIN, 0)
    if SHARED_STACK:
        with pytest.raises(ValueError, match="already active"):
            theirs.enable()
        capture.step_end()
        capture.finish()
        assert capture.statistics().lost == 0
        return
    theirs.enable()
    capture.step_end()
    work(5)
    active: object = sys.getprofile()
    assert active is theirs
    theirs.disable()
    with capture.step(TRAIN, 1):
        work(3)
    capture.finish()
    assert capture.statistics().interrupted == 1
    assert capture.statistics().refused == 1
    assert calls(capture.node_folder, spans(capture.node_folder)[0], "unit") == 3
    entries = {entry.code if isinstance(entry.code, str) else entry.code.co_name: entry for entry in theirs.getstats()}
    assert entries["unit"].callcount == 5


def test_a_profiler_switched_on_and_off_inside_a_span_costs_that_span(open_capture: Open) -> None:
    capture = open_capture(profiler="pyinstrument")
    with capture.step(TRAIN, 0):
        sys.setprofile(lambda frame, event, argument: None)
        sys.setprofile(None)
    with capture.step(TRAIN, 1):
        pass
    capture.finish()
    assert capture.statistics().interrupted == 1
    assert "train-1-stepstart_train-1-stepend" in [shape(span) for span in spans(capture.node_folder)]


def test_a_profile_function_is_respected_by_pyinstrument(open_capture: Open) -> None:
    def theirs(frame: FrameType, event: str, argument: object) -> None: ...

    capture = open_capture(profiler="pyinstrument")
    try:
        sys.setprofile(theirs)
        capture.start()
        assert sys.getprofile() is theirs
        sys.setprofile(None)
        capture.step_start(TRAIN, 0)
        sys.setprofile(theirs)
        capture.step_end()
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    statistics = capture.statistics()
    assert (statistics.refused, statistics.interrupted) == (2, 1)
