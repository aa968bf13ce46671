"""Notebook classes under bad luck: collected on their own threads, interrupted, forked, refused by the disk, and given
files that nobody would write."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import anyio.to_thread
import numpy as np
import pytest

from monitor.analysis import (
    ArgumentError,
    Metrics,
    PyinstrumentAnalysis,
    PyinstrumentStepStats,
    SkippedFileWarning,
    cProfileAnalysis,
)
from monitor.analysis.loop_thread import LoopThread
from monitor.analysis.waiting import tell
from monitor.errors import ForkedProcess, ReadError
from monitor.ingest import Ingest
from monitor.sources.base import FileRef
from tests.analysis.test_classes import DEADLINE_SECONDS, calls_in, write_step


def loop_of(analysis: cProfileAnalysis) -> LoopThread:
    loop: LoopThread = analysis._answers._loop  # type: ignore[attr-defined]
    return loop


def test_an_object_in_a_cycle_that_is_collected_on_a_loop_s_thread_ends(tmp_path: Path) -> None:
    """The collector runs wherever it pleases, mostly where most is made: on the thread that reads."""
    write_step(tmp_path, 0)

    async def collect() -> None:
        gc.collect()

    def cell() -> LoopThread:
        analysis = cProfileAnalysis(tmp_path)
        analysis.fetch_profile_stats_by_step(0)
        cycle: list[object] = [analysis]
        cycle.append(cycle)
        return loop_of(analysis)

    gc.disable()
    try:
        loop = cell()
        loop.start(collect).result(DEADLINE_SECONDS)
    finally:
        gc.enable()
    loop._thread.join(DEADLINE_SECONDS)
    assert not loop._thread.is_alive()


def test_after_an_interrupted_call_the_next_one_sees_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupted look goes on; all folders are looked at already, and nothing is handed over yet."""
    write_step(tmp_path, 0)
    slow, inside, go_on = threading.Event(), threading.Event(), threading.Event()
    accept = Ingest.accept

    async def slow_accept(self: Ingest, source: int, refs: Sequence[FileRef]) -> None:
        if slow.is_set() and refs:
            inside.set()
            await anyio.to_thread.run_sync(go_on.wait, DEADLINE_SECONDS)
        await accept(self, source, refs)

    def interrupt(*arguments: object) -> None:
        assert inside.wait(DEADLINE_SECONDS)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ingest, "accept", slow_accept)
    with cProfileAnalysis(tmp_path) as analysis:
        analysis.fetch_profile_stats_by_step(0)
        time.sleep(0.3)  # until the folders' times are trusted
        analysis.fetch_profile_stats_by_step(0)
        write_step(tmp_path, 1, node="1-new")
        time.sleep(0.3)
        slow.set()
        with monkeypatch.context() as patch:
            patch.setattr("monitor.analysis.waiting.wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                analysis.fetch_profile_stats_by_step(0, 9, node_id="all")
        threading.Timer(0.5, go_on.set).start()
        assert calls_in(analysis.fetch_profile_stats_by_step(0, 9, node_id="all")) == 2


def is_told_of_the_fork(call: Callable[[], object]) -> bool:
    try:
        call()
    except ForkedProcess:
        return True
    return False


def test_a_fork_in_the_middle_of_another_thread_s_call_is_told_too(tmp_path: Path) -> None:
    write_step(tmp_path, 0)
    with cProfileAnalysis(tmp_path) as analysis:
        stats = analysis.fetch_profile_stats_by_step(0)
        assert stats is not None
        reading, writing = os.pipe()
        answers = analysis._answers
        with answers._one_refresh, answers._guard:  # type: ignore[attr-defined]
            child = os.fork()
            if child == 0:  # where nobody ever opens these locks
                calls = [lambda: analysis.fetch_profile_stats_by_step(0), lambda: analysis.list_profile_stats()]
                os.write(writing, bytes([sum(map(is_told_of_the_fork, calls))]))
                os._exit(0)
        os.close(writing)
        timer = threading.Timer(DEADLINE_SECONDS, os.kill, [child, 9])
        timer.start()
        assert os.read(reading, 1) == bytes([2])
        timer.cancel()
        os.waitpid(child, 0)
        os.close(reading)


LOCKED = """
import sys, warnings
from monitor.analysis import cProfileAnalysis
for base in (sys.argv[1], sys.argv[1], sys.argv[2]):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        stats = cProfileAnalysis(base).fetch_profile_stats_by_step(0, node_id="all")
    print(stats and len(stats.function_stats_list), [str(each.message) for each in told])
"""


def test_a_folder_that_cannot_be_read_is_told_by_every_object(tmp_path: Path) -> None:
    for node in ("0-a", "1-b"):
        locked = write_step(tmp_path, 0, node=node).parents[1]
    locked.chmod(0)
    powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*powerless, sys.executable, "-c", LOCKED, str(tmp_path), str(locked)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    locked.chmod(0o700)
    message = f"skipped {locked}: cannot be listed: Permission denied"
    assert lines[:2] == [f"1 {[message]}"] * 2
    assert lines[3] == f"None {[message]}"  # behind the word that there is nothing


def test_a_folder_whose_name_is_no_text_is_read(tmp_path: Path) -> None:
    base = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    write_step(base, 0, calls=3)
    with cProfileAnalysis(base) as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(0)) == 3


def test_progress_is_silent_where_standard_error_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    tell(0, (1, 2), 1.0, end="\n")


def test_times_past_the_calendar_are_shown_as_numbers(tmp_path: Path) -> None:
    name = "train-0-stepstart-1796000000000000000_train-0-stepend-1796000000400000000"  # nanoseconds
    file = write_step(tmp_path, 0)
    file.parent.rename(file.parents[1] / name)
    with cProfileAnalysis(tmp_path) as analysis:
        stats = analysis.fetch_profile_stats_by_step(0)
        assert "1796000000000 s" in repr(stats)
        assert stats is not None
        assert "1796000000000 s" in stats._repr_html_()


def sessions_of(analysis: PyinstrumentAnalysis) -> list[PyinstrumentStepStats]:
    return list(analysis.fetch_profile_stats_by_step(0) or [])


def nested(depth: int) -> dict[str, object]:
    """A session in which each function calls the next."""
    frame: dict[str, object] = {}
    for level in range(depth, 0, -1):
        children = [frame] if frame else []
        frame = {"function": f"f{level}", "file_path": "/a.py", "line_no": level, "time": 1.0, "children": children}
    return {"start_time": 1.0, "duration": 1.0, "sample_count": 1, "program": "é", "root_frame": frame}


def test_a_session_of_deep_frames_is_copied_and_pickled(tmp_path: Path) -> None:
    file = write_step(tmp_path, 0, profiler="pyinstrument")
    file.write_text(json.dumps(nested(300)), encoding="utf-8")
    with PyinstrumentAnalysis(tmp_path) as analysis:
        (session,) = sessions_of(analysis)
        for same in (copy.deepcopy(session), pickle.loads(pickle.dumps(session))):
            assert json.dumps(same.json_stats) == json.dumps(session.json_stats)


def test_a_session_in_an_older_encoding_is_read(tmp_path: Path) -> None:
    file = write_step(tmp_path, 0, profiler="pyinstrument")
    file.write_text(json.dumps(nested(3), ensure_ascii=False), encoding="latin-1")
    with warnings.catch_warnings(), PyinstrumentAnalysis(tmp_path) as analysis:
        warnings.simplefilter("error", SkippedFileWarning)
        (session,) = sessions_of(analysis)
        assert session.json_stats["program"] == "é"


@pytest.mark.parametrize("text", [b'{"root_fr', b"[]"])
def test_a_session_whose_file_is_another_one_now_says_so(text: bytes, tmp_path: Path) -> None:
    file = write_step(tmp_path, 0, profiler="pyinstrument")
    with PyinstrumentAnalysis(tmp_path) as analysis:
        (session,) = sessions_of(analysis)
        file.write_bytes(text)
        with pytest.raises(ReadError, match="has changed since it was read"):
            assert session.json_stats


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"local_profile_dir": "~nosuchuser/x"}, "cannot be looked at: Could not determine home"),
        ({"local_profile_dir": "x" * 5_000}, "cannot be looked at: File name too long"),
        ({"local_profile_dir": "a\0b"}, "cannot be looked at: .*null byte"),
        ({"socket": 5}, "socket=5: must be the path"),
        ({"s3_path": b"3"}, "s3_path=b'3': must be s3://bucket/prefix"),
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cProfileAnalysis(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [Fraction(10**400), b"3", np.bool_(True)])
def test_what_is_no_step_is_refused(step: object, tmp_path: Path) -> None:
    with cProfileAnalysis(tmp_path) as analysis, pytest.raises(ArgumentError, match="must be a step"):
        analysis.fetch_profile_stats_by_step(step)  # type: ignore[arg-type]


def test_results_refuse_what_cannot_be_meant_and_take_numpy_s_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_step(tmp_path, 0)
    with cProfileAnalysis(tmp_path) as analysis:
        stats = analysis.fetch_profile_stats_by_step(0)
        assert stats is not None
        for path in (5, b"x"):
            with pytest.raises(ArgumentError, match="must be a regular expression"):
                stats.only(path=path)  # type: ignore[arg-type]
        stats.print_top_n_functions(Metrics.TOTAL_TIME, np.int64(2))  # type: ignore[arg-type]
        assert "train.py" in capsys.readouterr().out
        with pytest.raises(ArgumentError, match="0 or more"):
            stats.print_top_n_functions(Metrics.TOTAL_TIME, -1)
