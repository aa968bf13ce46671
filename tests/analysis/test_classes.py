"""The notebook classes by themselves: new files, refusals, broken files, threads, loops, forks and the end."""

from __future__ import annotations

import asyncio
import gc
import marshal
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from pathlib import Path
from random import Random
from typing import Any

import anyio
import numpy as np
import pandas as pd
import psutil
import pytest

from monitor.analysis import (
    ArgumentError,
    Metrics,
    MonitorError,
    PyinstrumentAnalysis,
    PythonProfileAnalysis,
    PythonProfileModes,
    SeveralRunsWarning,
    SkippedFileWarning,
    SourceUnavailable,
    StepPhase,
    StepPythonProfileStats,
    cProfileAnalysis,
    cProfileStats,
)
from monitor.analysis.classes import NOTHING_AT_ALL, NOTHING_IN_INTERVAL
from monitor.errors import ForkedProcess, ReadError
from tests.analysis.answers import found
from tests.analysis.runs import write_profile
from tests.integration.daemons import daemon_child

TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
HOME = Path(__file__).parents[2]
FUNCTION = ("/opt/ml/code/train.py", 10, "step")
DEADLINE_SECONDS = 20.0


def write_step(base: Path, step: int, *, node: str = "0-algo-0", calls: int = 1, profiler: str = "cprofile") -> Path:
    """Leave the span of one step, in which one function is called so many times; returns its data file."""
    start = 1_796_000_000_000_000 + step * 1_000_000
    name = f"train-{step}-stepstart-{start}.5_train-{step}-stepend-{start + 400_000}.5"
    folder = base / "framework" / "pytorch" / profiler / node / name
    folder.mkdir(parents=True)
    if profiler == "pyinstrument":
        write_profile(folder / "python_stats.json", profiler, Random(step))
        return folder / "python_stats.json"
    file = folder / "python_stats"
    file.write_bytes(marshal.dumps({FUNCTION: (calls, calls, 0.25 * calls, 0.5 * calls, {})}, 4))
    return file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A run of five steps; step n calls its function n + 1 times."""
    for step in range(5):
        write_step(tmp_path / "base", step, calls=step + 1)
    return tmp_path / "base"


@pytest.fixture
def analysis(base: Path) -> Iterator[cProfileAnalysis]:
    with cProfileAnalysis(str(base)) as opened:
        yield opened


def calls_in(stats: cProfileStats | None) -> int:
    assert stats is not None
    return sum(function.total_calls for function in stats.function_stats_list)


# -- newest files ------------------------------------------------------------------------------------------------------


def test_each_call_sees_the_newest_files(analysis: cProfileAnalysis, base: Path) -> None:
    for step in range(5, 60):
        write_step(base, step, calls=100)
        assert calls_in(analysis.fetch_profile_stats_by_step(step)) == 100


def test_a_new_node_is_seen_at_the_next_call(analysis: cProfileAnalysis, base: Path) -> None:
    assert analysis.list_available_node_ids() == ["0-algo-0"]
    write_step(base, 3, node="1-algo-1", calls=7)
    assert analysis.list_available_node_ids() == ["0-algo-0", "1-algo-1"]
    assert calls_in(analysis.fetch_profile_stats_by_step(3, node_id="1-algo-1")) == 7


def test_without_refresh_what_was_known_is_asked(analysis: cProfileAnalysis, base: Path) -> None:
    assert calls_in(analysis.fetch_profile_stats_by_step(0, refresh_stats=False)) == 1  # the first call reads
    write_step(base, 9, calls=9)
    assert analysis.fetch_profile_stats_by_step(9, refresh_stats=False) is None
    assert len(analysis.list_profile_stats(refresh_stats=False)) == 5
    assert calls_in(analysis.fetch_profile_stats_by_step(9)) == 9


def test_a_settled_folder_is_not_listed_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = time.time() - 3600
    for folder in [base, *base.rglob("*")]:
        if folder.is_dir():
            os.utime(folder, (long_ago, long_ago))
    with cProfileAnalysis(str(base)) as analysis:
        analysis.fetch_profile_stats_by_step(1)
        listed: list[object] = []
        monkeypatch.setattr(os, "scandir", lambda path: listed.append(path))
        assert calls_in(analysis.fetch_profile_stats_by_step(2)) == 3
        monkeypatch.undo()
        assert listed == []
        write_step(base, 7, calls=70)
        assert calls_in(analysis.fetch_profile_stats_by_step(7)) == 70


def test_a_result_does_not_change_when_new_files_come(analysis: cProfileAnalysis, base: Path) -> None:
    before = analysis.fetch_profile_stats_by_training_phase()[TRAIN, TRAIN]
    later = analysis.fetch_profile_stats_by_step(0, 100)
    write_step(base, 6, calls=1000)
    assert calls_in(analysis.fetch_profile_stats_by_training_phase()[TRAIN, TRAIN]) == 1015
    assert calls_in(before) == calls_in(later) == 15


def test_files_of_a_run_that_is_being_written_are_read_when_they_are_whole(base: Path) -> None:
    whole = write_step(base, 8, calls=8)
    data = whole.read_bytes()
    whole.write_bytes(data[: len(data) // 2])
    with cProfileAnalysis(str(base)) as analysis:
        with pytest.warns(SkippedFileWarning, match="ends before its data does"):
            assert analysis.fetch_profile_stats_by_step(8) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # told once
            assert calls_in(analysis.fetch_profile_stats_by_step(0, 4)) == 15
        whole.write_bytes(data)
        assert calls_in(analysis.fetch_profile_stats_by_step(8)) == 8


def test_a_folder_without_its_file_is_awaited_in_silence(analysis: cProfileAnalysis, base: Path) -> None:
    late = write_step(base, 8, calls=8)
    data = late.read_bytes()
    late.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert analysis.fetch_profile_stats_by_step(8) is None
        late.write_bytes(data)
        assert calls_in(analysis.fetch_profile_stats_by_step(8)) == 8


# -- broken files ------------------------------------------------------------------------------------------------------


def test_one_broken_file_among_many_is_told_and_the_others_answer(tmp_path: Path) -> None:
    for step in range(300):
        write_step(tmp_path, step)
    broken = write_step(tmp_path, 300)
    broken.write_bytes(b"this is no profile")
    with cProfileAnalysis(str(tmp_path)) as analysis:
        with pytest.warns(SkippedFileWarning) as told:
            assert calls_in(analysis.fetch_profile_stats_by_step(0, 400)) == 300
        assert [str(warning.message).split(":")[0] for warning in told] == [f"skipped {broken}"]


def test_a_file_that_crashes_its_reader_costs_itself_only(analysis: cProfileAnalysis, base: Path) -> None:
    bomb = write_step(base, 6)
    bomb.write_bytes(b"(\xff\xff\xff\x7f" * 50)
    with pytest.warns(SkippedFileWarning, match="skipped"):
        assert calls_in(analysis.fetch_profile_stats_by_step(0, 9)) == 15


def test_a_profile_without_functions_is_a_span_with_none(tmp_path: Path) -> None:
    write_step(tmp_path, 0).write_bytes(marshal.dumps({}))
    with cProfileAnalysis(str(tmp_path)) as analysis:
        stats = analysis.fetch_profile_stats_by_step(0)
        assert stats is not None
        assert (stats.spans, stats.function_stats_list, len(stats.to_dataframe())) == (1, [], 0)
        stats.print_top_n_functions(Metrics.TOTAL_TIME, 3)


def test_two_sessions_that_start_together_and_one_without_its_picture_are_sessions(tmp_path: Path) -> None:
    first = write_step(tmp_path, 0, profiler="pyinstrument")
    name = first.parent.name
    twin = first.parent.with_name(name.replace("_train-0", "_train-1"))
    shutil.copytree(first.parent, twin)
    (twin / "python_stats.html").unlink()
    with PyinstrumentAnalysis(str(tmp_path)) as analysis:
        sessions = found(analysis.fetch_profile_stats_by_step(0, 1))
        assert len(sessions) == 2
        assert sessions[0].json_stats == sessions[1].json_stats
        assert len(analysis.list_profile_stats()) == 3


def test_a_session_whose_file_has_gone_says_so(tmp_path: Path) -> None:
    file = write_step(tmp_path, 0, profiler="pyinstrument")
    with PyinstrumentAnalysis(str(tmp_path)) as analysis:
        (session,) = found(analysis.fetch_profile_stats_by_step(0))
        file.unlink()
        with pytest.raises(ReadError, match="holds no data file"):
            assert session.json_stats


def test_a_file_that_was_set_aside_is_read_when_it_is_mended(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = write_step(base, 8, calls=8)
    data = broken.read_bytes()
    broken.write_bytes(b"no profile")
    long_ago = time.time() - 3600
    os.utime(broken, (long_ago, long_ago))
    monkeypatch.setattr("monitor.analysis.intake.BROKEN_AFTER_SECONDS", 0.0)
    with cProfileAnalysis(str(base)) as analysis:
        with pytest.warns(SkippedFileWarning, match="skipped"):
            assert analysis.fetch_profile_stats_by_step(8) is None
        assert analysis.fetch_profile_stats_by_step(8) is None
        broken.write_bytes(data)
        assert calls_in(analysis.fetch_profile_stats_by_step(8)) == 8


def test_a_skipped_file_is_told_at_the_line_that_asked(base: Path) -> None:
    write_step(base, 8).write_bytes(b"no profile")
    with cProfileAnalysis(str(base)) as analysis, pytest.warns(SkippedFileWarning) as told:
        analysis.fetch_profile_stats_by_training_phase()
    assert [warning.filename for warning in told] == [__file__]


def test_a_picture_that_comes_later_is_listed(tmp_path: Path) -> None:
    file = write_step(tmp_path, 0, profiler="pyinstrument")
    picture = file.with_suffix(".html")
    content = picture.read_text()
    picture.unlink()
    with PyinstrumentAnalysis(str(tmp_path)) as analysis:
        assert len(analysis.list_profile_stats()) == len(analysis.python_profile_stats) == 1
        picture.write_text(content)
        assert len(analysis.list_profile_stats()) == len(analysis.python_profile_stats) == 2
        assert list(analysis.list_profile_stats()["stats_path"])[1] == str(picture)


def test_the_folder_is_kept_where_the_notebook_goes_elsewhere(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base.parent)
    with cProfileAnalysis(base.name) as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(0, 9)) == 15
        monkeypatch.chdir("/")
        write_step(base, 9, calls=100)
        assert calls_in(analysis.fetch_profile_stats_by_step(9)) == 100


def test_a_folder_that_is_gone_is_told(analysis: cProfileAnalysis, base: Path) -> None:
    assert calls_in(analysis.fetch_profile_stats_by_step(1)) == 2
    base.rename(base.with_name("elsewhere"))
    with pytest.raises(SourceUnavailable, match=r"local_profile_dir=.*: it is not there any more"):
        analysis.fetch_profile_stats_by_step(1)
    base.with_name("elsewhere").rename(base)
    assert calls_in(analysis.fetch_profile_stats_by_step(1)) == 2


def test_a_link_that_is_switched_leads_to_the_other_run(base: Path, tmp_path: Path) -> None:
    write_step(tmp_path / "other", 7, calls=50)
    latest = tmp_path / "latest"
    latest.symlink_to(base)
    with cProfileAnalysis(str(latest)) as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(1)) == 2
        latest.unlink()
        latest.symlink_to(tmp_path / "other")
        with pytest.warns(SeveralRunsWarning, match="profiles of 2 runs are added together"):
            assert calls_in(analysis.fetch_profile_stats_by_step(7)) == 50


def test_a_span_of_the_older_layout_knows_its_steps() -> None:
    span = StepPythonProfileStats(
        "tensorflow", "cprofile", "151-algo-1", "1000000.0_2000000.0_151-algo-1_7", "/copied/x"
    )
    assert span.in_step_interval(6, 8, StepPhase.STEP_START, StepPhase.STEP_END)
    assert not span.in_step_interval(8, 9, StepPhase.STEP_START, StepPhase.STEP_END)
    assert span.in_time_interval(500_000, 1_500_000)
    assert not span.in_time_interval(2_500_000, 3_000_000)
    assert span.has_start_and_end_mode(TRAIN, TRAIN)
    assert span.has_node_id("151-algo-1")
    assert not span.has_pre_step_zero_profile_stats()
    assert not span.has_post_hook_close_profile_stats()


def test_several_runs_below_one_folder_are_told(tmp_path: Path) -> None:
    write_step(tmp_path / "a", 1, calls=2)
    write_step(tmp_path / "b", 2, calls=3)
    with cProfileAnalysis(str(tmp_path)) as analysis:
        with pytest.warns(SeveralRunsWarning, match=f"2 runs are added together; give one of {tmp_path}/a, "):
            assert calls_in(analysis.fetch_profile_stats_by_step(0, 9)) == 5
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            analysis.list_profile_stats()


# -- nothing found -----------------------------------------------------------------------------------------------------


def test_an_empty_folder_has_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cProfileAnalysis(str(tmp_path)) as analysis:
        assert analysis.fetch_profile_stats_by_step(1) is None
        assert analysis.fetch_profile_stats_by_training_phase() == {}
        assert set(analysis.fetch_profile_stats_by_job_phase().values()) == {None}
        assert capsys.readouterr().out.splitlines() == [NOTHING_IN_INTERVAL] * 3
        assert isinstance(analysis.list_profile_stats(), pd.DataFrame)
        assert capsys.readouterr().out.splitlines() == [NOTHING_AT_ALL]
        assert analysis.list_available_node_ids() == []
        assert analysis.python_profile_stats == []


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[cProfileAnalysis], object], str]] = [
    (lambda a: a.fetch_profile_stats_by_step("ten"), "start_step='ten': must be a step: a whole number, or its digits"),
    (lambda a: a.fetch_profile_stats_by_step(1.5), "start_step=1.5: must be a step"),
    (lambda a: a.fetch_profile_stats_by_step(True), "start_step=True: must be a step"),
    (lambda a: a.fetch_profile_stats_by_step(None), "start_step=None: must be a step"),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_by_step(1, "x"), "end_step='x': must be a step"),
    (lambda a: a.fetch_profile_stats_by_step(5, 4), "end_step=4: must not be before start_step=5"),
    (lambda a: a.fetch_python_profile_stats_by_step(5, 4), "end_step=4: must not be before start_step=5"),
    (lambda a: a.fetch_profile_stats_by_step(1, mode="train"), "mode='train': must be a member of PythonProfileModes"),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_by_step(1, mode=9), "mode=9: must be a member of PythonProfileModes: TRAIN, EVAL"),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_by_step(1, start_phase="x"), "start_phase='x': must be a member of StepPhase"),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_by_step(1, end_phase=TRAIN), "end_phase=.*: must be a member of StepPhase: START"),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_between_modes(TRAIN, "eval"), "end_mode='eval': must be a member of"),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_by_time("now", 2), "start_time_since_epoch_in_secs='now': must be"),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_by_time(1, float("nan")), "end_time_since_epoch_in_secs=nan: must be a number"),
    (lambda a: a.fetch_profile_stats_by_time(2, 1), "end_time_since_epoch_in_secs=1.0: must not be before start_time"),
    (lambda a: a.fetch_profile_stats_by_time(1, 2, overlap="all"), "overlap='all': must be \"ends\""),
    (lambda a: a.fetch_profile_stats_by_step(1, node_id=3), 'node_id=3: must be "any", "all", the name of a node'),  # type: ignore[arg-type]
    (lambda a: a.fetch_profile_stats_by_step(1, node_id=[]), "node_id=\\[\\]: must be"),
    (lambda a: a.fetch_profile_stats_by_step(1, node_id=["any", "0-algo-0"]), "node_id=.*cannot be joined"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_by_name(
    analysis: cProfileAnalysis, call: Callable[[cProfileAnalysis], object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message) as refusal:
        call(analysis)
    assert isinstance(refusal.value, ValueError)
    assert str(refusal.value).startswith(f"{refusal.value.parameter}=")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"local_profile_dir": "/nowhere/at/all"}, "local_profile_dir='/nowhere/at/all': does not exist"),
        ({"local_profile_dir": __file__}, "local_profile_dir=.*: is a file; give the folder"),
        ({"local_profile_dir": 5}, "local_profile_dir=5: must be a path"),
        ({"socket": "/x.sock", "s3_path": "s3://a/b"}, "s3_path='s3://a/b': must be left out with socket='/x.sock'"),
    ],
)
def test_a_place_that_cannot_be_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cProfileAnalysis(**arguments)


def test_the_default_folder_is_the_original_s() -> None:
    assert PythonProfileAnalysis.__init__.__defaults__ == ("/tmp/python_stats", None)


def as_any(value: Any) -> Any:
    """Pass what the types do not allow and callers do all the same."""
    return value


class TheirModes(IntEnum):
    TRAIN = 1


class TheirPhases(Enum):
    STEP_START = "stepstart"


def test_steps_may_be_digits_and_modes_the_original_s_own(analysis: cProfileAnalysis) -> None:
    modes: Any = TheirModes
    phases: Any = TheirPhases
    stats = analysis.fetch_profile_stats_by_step("1", "3", mode=modes.TRAIN, start_phase=phases.STEP_START)
    assert calls_in(stats) == 2 + 3 + 4
    assert calls_in(analysis.fetch_python_profile_stats_by_step("1", "3")) == 2 + 3
    assert calls_in(analysis.fetch_python_profile_stats_by_step(2)) == 3
    assert calls_in(analysis.fetch_profile_stats_by_step(0, float("inf"))) == 15
    assert calls_in(analysis.fetch_profile_stats_by_step(0, 10**40)) == 15
    assert calls_in(analysis.fetch_profile_stats_by_step("0" * 40 + "2")) == 3
    assert calls_in(analysis.fetch_profile_stats_by_step(as_any(np.int64(2)), as_any(np.float32(2.0)))) == 3


# -- several nodes, both profilers -------------------------------------------------------------------------------------


def test_several_nodes_are_added_up(analysis: cProfileAnalysis, base: Path) -> None:
    for node, calls in (("1-algo-1", 10), ("2-algo-2", 100)):
        write_step(base, 2, node=node, calls=calls)
    asked = {"any": 3, "all": 113, "1-algo-1": 10, ("0-algo-0", "2-algo-2"): 103}
    for node_id, calls in asked.items():
        assert calls_in(analysis.fetch_profile_stats_by_step(2, node_id=node_id)) == calls
    assert analysis.fetch_profile_stats_by_step(2, node_id="gone") is None


def test_overlap_also_takes_spans_that_cover_the_interval(analysis: cProfileAnalysis) -> None:
    inside = (1_796_000_002.1, 1_796_000_002.2)
    assert analysis.fetch_profile_stats_by_time(*inside) is None
    assert calls_in(analysis.fetch_profile_stats_by_time(*inside, overlap="any")) == 3
    assert calls_in(analysis.fetch_python_profile_stats_by_time(*inside, overlap="any")) == 3


def test_the_base_class_lists_the_files_of_both_profilers(base: Path, short_tmp_path: Path) -> None:
    write_step(base, 1, profiler="pyinstrument")
    with daemon_child(short_tmp_path, base):
        for place in ({"local_profile_dir": str(base)}, {"socket": short_tmp_path / "s.sock"}):
            opened: PythonProfileAnalysis[list[StepPythonProfileStats]] = PythonProfileAnalysis(**place)
            with opened as analysis:
                files = found(analysis.fetch_profile_stats_by_step(1))
                assert [(file.profiler_name, Path(file.stats_path).name) for file in files] == [
                    ("cprofile", "python_stats"),
                    ("pyinstrument", "python_stats.json"),
                    ("pyinstrument", "python_stats.html"),
                ]
                assert isinstance(files[0], StepPythonProfileStats)
                assert len(analysis.python_profile_stats) == 7


# -- a daemon ----------------------------------------------------------------------------------------------------------


def test_a_socket_nobody_listens_on_is_named(short_tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"socket='.*gone\.sock': no daemon answers"):
        cProfileAnalysis(socket=short_tmp_path / "gone.sock")


def test_a_daemon_answers_with_the_newest_files(base: Path, short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, base), cProfileAnalysis(socket=short_tmp_path / "s.sock") as analysis:
        for step in range(5, 15):
            write_step(base, step, calls=100)
            assert calls_in(analysis.fetch_profile_stats_by_step(step)) == 100
        assert len(analysis.list_profile_stats()) == 15
        with pytest.raises(ArgumentError, match="start_step=-1: must be 0 or more where a daemon answers"):
            analysis.fetch_profile_stats_by_step(-1, 3)


def test_of_several_jobs_one_must_be_named(base: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    write_step(tmp_path / "other", 2, calls=50)
    config = short_tmp_path / "c.toml"
    sources = [("first", base), ("second", tmp_path / "other")]
    config.write_text("".join(f'[[source]]\njob = "{job}"\npath = "{path}"\n' for job, path in sources))
    with daemon_child(short_tmp_path, None, "-c", str(config)):
        socket = short_tmp_path / "s.sock"
        with cProfileAnalysis(socket=socket, job="first") as analysis:
            assert calls_in(analysis.fetch_profile_stats_by_step(2, node_id="all")) == 3
        with pytest.raises(ArgumentError, match="job=None: the daemon has several jobs; give one of first, second"):
            cProfileAnalysis(socket=socket)
        with pytest.raises(ArgumentError, match="job='third': the daemon has no such job; it has first, second"):
            cProfileAnalysis(socket=socket, job="third")


def test_a_daemon_and_a_folder_agree_on_nodes_that_are_not_there(base: Path, short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, base):
        for place in ({"local_profile_dir": str(base)}, {"socket": short_tmp_path / "s.sock"}):
            with cProfileAnalysis(**place) as analysis:
                assert calls_in(analysis.fetch_profile_stats_by_step(0, 9, node_id=["0-algo-0", "gone"])) == 15
                assert analysis.fetch_profile_stats_by_step(0, 9, node_id=["gone", "lost"]) is None
                assert analysis.fetch_profile_stats_by_training_phase(node_id="gone") == {}


def test_a_job_that_is_watched_may_have_no_profiles_yet(base: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    config = short_tmp_path / "c.toml"
    sources = [("first", base), ("second", tmp_path / "later")]
    config.write_text("".join(f'[[source]]\njob = "{job}"\npath = "{path}"\n' for job, path in sources))
    with daemon_child(short_tmp_path, None, "-c", str(config)):
        with cProfileAnalysis(socket=short_tmp_path / "s.sock", job="second") as analysis:
            assert analysis.fetch_profile_stats_by_step(1) is None
            write_step(tmp_path / "later", 1, calls=9)
            assert calls_in(analysis.fetch_profile_stats_by_step(1)) == 9


def test_a_daemon_s_set_aside_files_are_told_too(base: Path, short_tmp_path: Path) -> None:
    broken = write_step(base, 9)
    broken.write_bytes(b"no profile")
    config = short_tmp_path / "c.toml"
    config.write_text("[ingest]\nbroken_after_seconds = 0.1\n")
    with daemon_child(short_tmp_path, base, "-c", str(config)) as (_, client):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not client.status()["set_aside"] and time.monotonic() < deadline:
            time.sleep(0.02)
        with cProfileAnalysis(socket=short_tmp_path / "s.sock") as analysis:
            with pytest.warns(SkippedFileWarning, match=f"skipped {broken}"):
                assert calls_in(analysis.fetch_profile_stats_by_step(0, 9)) == 15


def test_sessions_whose_rows_retention_has_dropped_still_count_in_phases(tmp_path: Path, short_tmp_path: Path) -> None:
    for step in range(6):
        write_step(tmp_path, step, profiler="pyinstrument")
    config = short_tmp_path / "c.toml"
    config.write_text("[store]\nretention_spans = 4\nretention_interval_seconds = 1\n")
    with daemon_child(short_tmp_path, tmp_path, "-c", str(config)) as (_, client):
        client.jobs(fresh=True)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while client.status()["profiles_with_rows"] > 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        with PyinstrumentAnalysis(socket=short_tmp_path / "s.sock") as analysis:
            sessions = found(analysis.fetch_profile_stats_between_modes(TRAIN, TRAIN))
            assert (len(sessions), sessions.merged.spans) == (4, 6)


# -- threads, loops, processes -----------------------------------------------------------------------------------------


def test_it_works_inside_a_running_event_loop(base: Path) -> None:
    async def cell() -> int:
        with cProfileAnalysis(str(base)) as analysis:
            return calls_in(analysis.fetch_profile_stats_by_step(0, 4))

    assert asyncio.run(cell()) == 15


def test_several_threads_may_ask_while_files_become_whole(base: Path) -> None:
    """The index changes between calls as well; no answer may be torn: here every span has one call of 0.25 s."""
    shutil.rmtree(base)
    data = write_step(base, 0).read_bytes()
    files = [write_step(base, step) for step in range(1, 300)]
    for file in files:
        file.write_bytes(data[:20])
    wrong: list[object] = []
    with cProfileAnalysis(str(base)) as analysis, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysis.fetch_profile_stats_by_step(0)
        done = threading.Event()

        def ask(number: int) -> None:
            while not done.is_set():
                try:
                    found_now = analysis.fetch_profile_stats_by_training_phase(refresh_stats=number == 0)
                    stats = found_now[TRAIN, TRAIN]
                    (row,) = stats.to_dataframe().to_dict("records")
                    listed = len(analysis.list_profile_stats(refresh_stats=False))
                    if not stats.spans == row["calls"] == row["self_seconds"] * 4 <= listed:
                        wrong.append((stats.spans, row, listed))
                except Exception as error:  # noqa: BLE001 - whatever comes out is wrong
                    wrong.append(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for file in files:
                file.write_bytes(data)
            deadline = time.monotonic() + DEADLINE_SECONDS
            while len(analysis.list_profile_stats()) < 300 and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            done.set()
            sys.setswitchinterval(interval)
            for thread in threads:
                thread.join(DEADLINE_SECONDS)
        assert wrong == []
        assert calls_in(analysis.fetch_profile_stats_by_step(0, 999)) == 300


def in_child(analysis: cProfileAnalysis, answers: Any) -> None:
    try:
        analysis.fetch_profile_stats_by_step(1)
    except ForkedProcess as error:
        answers.put(str(error))


def test_a_forked_child_is_told_to_make_its_own(analysis: cProfileAnalysis, base: Path) -> None:
    analysis.fetch_profile_stats_by_step(1)
    write_step(base, 9)
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    child = fork.Process(target=in_child, args=(analysis, answers))
    child.start()
    assert "make a new one in the child" in answers.get(timeout=DEADLINE_SECONDS)
    child.join(DEADLINE_SECONDS)
    assert child.exitcode == 0


def decoders() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "monitor.decode_worker" in " ".join(child.cmdline())]


def test_closing_ends_threads_and_processes_and_keeps_results(base: Path) -> None:
    analysis = cProfileAnalysis(str(base))
    stats = analysis.fetch_profile_stats_by_step(0, 4)
    assert calls_in(stats) == 15
    assert decoders()
    analysis.close()
    analysis.close()
    assert not decoders()
    assert calls_in(stats) == 15
    with pytest.raises(MonitorError, match="was closed: make a new one"):
        analysis.fetch_profile_stats_by_step(1)


def test_an_object_that_is_dropped_ends_its_processes(base: Path) -> None:
    analysis = cProfileAnalysis(str(base))
    analysis.fetch_profile_stats_by_step(1)
    del analysis
    deadline = time.monotonic() + DEADLINE_SECONDS
    while decoders() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not decoders()


EXITS = {
    "at the end of the script": "",
    "by an exception": "raise SystemExit(3)",
    "before anything was read": "a = cProfileAnalysis(sys.argv[1])",
}


@pytest.mark.parametrize("way", EXITS)
def test_a_script_that_closes_nothing_ends_at_once_and_leaves_nothing(way: str, base: Path) -> None:
    script = (
        "import os, sys\nfrom monitor.analysis import cProfileAnalysis\na = cProfileAnalysis(sys.argv[1])\n"
        "if 'before' not in sys.argv[2]:\n    a.fetch_profile_stats_by_step(1)\n"
        f"print(os.getpid(), flush=True)\n{EXITS[way]}\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, str(base), way],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env={**os.environ, "PYTHONPATH": str(HOME)},
    )
    assert done.returncode == (3 if way == "by an exception" else 0), done.stderr
    assert done.stderr == ""
    assert time.monotonic() - started < 10
    parent = int(done.stdout.split()[0])
    assert not [child for child in psutil.process_iter(["ppid"]) if child.info["ppid"] == parent]


def test_a_thread_that_outlives_the_main_one_is_told_that_the_program_ends(base: Path) -> None:
    script = (
        "import sys, threading, time\nfrom monitor.analysis import MonitorError, cProfileAnalysis\n"
        "a = cProfileAnalysis(sys.argv[1])\n"
        "def ask():\n    threading.main_thread().join()\n    try:\n"
        "        while True:\n            a.list_profile_stats()\n            time.sleep(0.01)\n"
        "    except MonitorError as error:\n        print(error)\n"
        "threading.Thread(target=ask).start()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    command = [sys.executable, "-c", script, str(base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment)
    assert "the analysis was closed, or the program ends" in done.stdout, done.stderr


def test_a_long_wait_tells_how_far_it_is(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("monitor.analysis.waiting.QUIET_SECONDS", 0.0)
    with cProfileAnalysis(str(base)) as analysis:
        analysis.fetch_profile_stats_by_step(1)
    assert "read 5 of 5 profiles in 0 s" in capsys.readouterr().err


def test_reading_that_broke_is_told_and_not_waited_for(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first answer, and after it, when old answers would look like new ones."""
    with cProfileAnalysis(str(base)) as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(1)) == 2
        monkeypatch.setattr("monitor.sources.walk.Walker.scan", broken_scan)
        write_step(base, 9)
        for _ in range(2):
            with pytest.raises(MonitorError, match=r"the reading of .* has failed \(the walker broke\): make a new"):
                analysis.fetch_profile_stats_by_step(1)
    with cProfileAnalysis(str(base)) as analysis, pytest.raises(MonitorError, match="the walker broke"):
        analysis.fetch_profile_stats_by_step(1)


def broken_scan(*arguments: object, **more: object) -> None:
    raise RuntimeError("the walker broke")


def test_a_long_read_can_be_ended_by_another_thread(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = threading.Event()

    async def never(self: object, *arguments: object, **more: object) -> None:
        reading.set()
        await anyio.sleep_forever()

    monkeypatch.setattr("monitor.ingest.Ingest.refresh", never)
    analysis = cProfileAnalysis(str(base))

    def end() -> None:
        reading.wait()
        analysis.close()

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(MonitorError, match="was closed"):
        analysis.fetch_profile_stats_by_step(1)
    ending.join(DEADLINE_SECONDS)


def test_a_result_that_was_looked_at_keeps_no_process_alive(base: Path) -> None:
    analysis = cProfileAnalysis(str(base))
    stats = found(analysis.fetch_profile_stats_by_step(1))
    assert calls_in(stats) == 2
    del analysis
    gc.collect()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while decoders() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not decoders()
    assert calls_in(stats) == 2
