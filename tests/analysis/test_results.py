"""What results can do beyond the original: grouping, filters, comparison, merged trees, tables and pages."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import pstats
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.analysis import (
    ArgumentError,
    Metrics,
    PyinstrumentAnalysis,
    PyinstrumentTree,
    PythonProfileModes,
    StatsDiff,
    cProfileAnalysis,
    cProfileFunctionStats,
    cProfileStats,
    diff,
)
from monitor.analysis.functions import Recorded
from monitor.grouping import file_of, module_of, package_of
from tests.analysis.answers import found
from tests.analysis.test_classes import write_step

TRAIN = PythonProfileModes.TRAIN
STEP = ("/opt/ml/code/train.py", 10, "step")
LOAD = ("/opt/ml/code/data/load.py", 3, "load")
CALL = ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", 1518, "_call_impl")
LINEAR = ("/opt/conda/lib/python3.11/site-packages/torch/nn/functional.py", 20, "linear")
DECODE = ("/opt/conda/lib/python3.11/json/decoder.py", 332, "decode")
LEN = ("~", 0, "<built-in method builtins.len>")

STATS: dict[Any, Any] = {
    STEP: (2, 2, 0.5, 10.0, {}),
    LOAD: (2, 2, 1.0, 3.0, {STEP: (2, 2, 1.0, 3.0)}),
    CALL: (4, 6, 2.0, 6.0, {STEP: (4, 4, 1.5, 6.0), CALL: (2, 0, 0.5, 1.0)}),
    LINEAR: (6, 6, 3.5, 4.0, {CALL: (6, 6, 3.5, 4.0)}),
    DECODE: (2, 2, 1.5, 2.0, {LOAD: (2, 2, 1.5, 2.0)}),
    LEN: (9, 9, 1.5, 1.5, {DECODE: (5, 5, 0.5, 0.5), LINEAR: (4, 4, 1.0, 1.0)}),
}


def stats_of(stats: dict[Any, Any]) -> cProfileStats:
    made: Any = pstats.Stats(Recorded(stats))  # type: ignore[arg-type]
    return cProfileStats(made)


@pytest.fixture
def stats() -> cProfileStats:
    return stats_of(STATS)


# -- cProfile results --------------------------------------------------------------------------------------------------


def test_ps_is_a_full_pstats_object(stats: cProfileStats, capsys: pytest.CaptureFixture[str]) -> None:
    round_trip = cProfileStats.of_table(lambda: stats.table)
    assert round_trip.ps.stats == stats.ps.stats == STATS  # type: ignore[attr-defined]
    assert (round_trip.ps.total_calls, round_trip.ps.prim_calls) == (27, 25)  # type: ignore[attr-defined]
    assert round_trip.ps.total_tt == pytest.approx(10.0)  # type: ignore[attr-defined]
    round_trip.ps.sort_stats("cumulative").print_stats(2)
    round_trip.ps.print_callers("linear")
    round_trip.ps.print_callees("load")
    out = capsys.readouterr().out
    assert "27 function calls (25 primitive calls) in 10.000 seconds" in out
    assert "Ordered by: cumulative time" in out
    assert "/opt/ml/code/data/load.py:3(load)" in out
    assert "decoder.py:332(decode)" in out


@pytest.mark.parametrize(
    ("by", "first"),
    [
        (Metrics.TOTAL_TIME, "linear"),
        (Metrics.CUMULATIVE_TIME, "step"),
        (Metrics.PRIMITIVE_CALLS, "builtins.len"),
        (Metrics.TOTAL_CALLS, "builtins.len"),
    ],
)
def test_top_functions_are_printed_by_a_metric(
    stats: cProfileStats, by: Metrics, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stats.print_top_n_functions(by, 1)
    out = capsys.readouterr().out
    assert "due to restriction <1>" in out
    assert first in out.splitlines()[-3]


@pytest.mark.parametrize(("by", "n", "message"), [("tottime", 3, "by='tottime'"), (Metrics.TOTAL_TIME, "3", "n='3'")])
def test_a_wrong_metric_or_number_is_refused(stats: cProfileStats, by: Any, n: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stats.print_top_n_functions(by, n)


def test_function_records_have_the_original_s_attributes(stats: cProfileStats) -> None:
    call = next(function for function in stats.function_stats_list if "_call_impl" in function.function_name)
    assert isinstance(call, cProfileFunctionStats)
    assert call.function_name == f"{CALL[0]}:1518(_call_impl)"
    assert (call.prim_calls, call.total_calls, call.total_time, call.cumulative_time) == (4, 6, 2.0, 6.0)
    assert call.callers == [f"{STEP[0]}:10(step)", f"{CALL[0]}:1518(_call_impl)"]
    assert repr(call).startswith("{'function name': ")


def test_function_stats_are_a_frame_with_named_columns(stats: cProfileStats) -> None:
    frame = stats.get_function_stats()
    assert list(frame.columns) == [
        "function_name",
        "prim_calls",
        "total_calls",
        "total_time",
        "cumulative_time",
        "callers",
    ]
    assert frame["total_calls"].sum() == 27


def test_every_result_is_a_frame_of_functions(stats: cProfileStats) -> None:
    frame = stats.to_dataframe()
    assert list(frame["name"])[:2] == ["linear", "_call_impl"]
    assert list(frame.iloc[0]) == [*LINEAR, 6, 6, 3.5, 4.0]


# -- groups and filters ------------------------------------------------------------------------------------------------

FILES = [
    (CALL[0], "torch", "torch.nn.modules.module", "torch/nn/modules/module.py"),
    ("/usr/lib/python3/dist-packages/numpy/__init__.py", "numpy", "numpy", "numpy/__init__.py"),
    ("/venv/lib/python3.12/site-packages/six.py", "six", "six", "six.py"),
    (DECODE[0], "standard library", "json.decoder", "json/decoder.py"),
    ("<frozen importlib._bootstrap>", "standard library", "importlib._bootstrap", "<frozen importlib._bootstrap>"),
    (STEP[0], "application code", "code.train", "code/train.py"),
    ("<string>", "application code", "<string>", "<string>"),
    ("<ipython-input-3-abc>", "application code", "<ipython-input-3-abc>", "<ipython-input-3-abc>"),
    ("~", "built-in", "built-in", "built-in"),
    ("", "built-in", "built-in", "built-in"),
]


@pytest.mark.parametrize(("file", "package", "module", "short"), FILES)
def test_a_file_belongs_to_a_package_and_a_module(file: str, package: str, module: str, short: str) -> None:
    name = (file, 3, "f")
    assert (package_of(name), module_of(name), file_of(name)) == (package, module, short)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("<built-in method torch._C._nn.linear>", "torch"),
        ("<built-in method numpy.array>", "numpy"),
        ("<method 'add_' of 'torch._C.TensorBase' objects>", "torch"),
        ("<method 'reduce' of 'numpy.ufunc' objects>", "numpy"),
        ("<built-in method builtins.len>", "built-in"),
        ("<built-in method _io.open>", "built-in"),
        ("<built-in method time.sleep>", "built-in"),
        ("<method 'append' of 'list' objects>", "built-in"),
        ("<method 'acquire' of '_thread.RLock' objects>", "built-in"),
        ("<built-in method __new__ of type object>", "built-in"),
        ("anything", "built-in"),
    ],
)
def test_native_code_belongs_to_the_package_that_its_name_tells(name: str, package: str) -> None:
    assert package_of(("~", 0, name)) == package


def test_a_function_that_nobody_recorded_called_counts_as_entered() -> None:
    """Profiling begins inside a hook: the first call into a package has no caller, later ones through it have."""
    forward = ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", 5, "forward")
    grouped = (
        stats_of(
            {
                CALL: (1, 3, 0.5, 4.0, {forward: (2, 2, 0.25, 3.0)}),
                forward: (1, 2, 3.5, 3.75, {CALL: (2, 2, 3.5, 3.75)}),
            }
        )
        .group_by("package")
        .to_dataframe()
    )
    (row,) = grouped.to_dict("records")
    assert row["self_seconds"] == 4.0
    assert row["cumulative_seconds"] == 1.0  # what its recorded callers do not account for


def test_a_recursive_root_keeps_its_time() -> None:
    (row,) = (
        stats_of({STEP: (1, 5, 2.0, 2.0, {STEP: (4, 0, 1.5, 1.75)})})
        .group_by("package")
        .to_dataframe()
        .to_dict("records")
    )
    assert row["cumulative_seconds"] == 2.0


def test_functions_are_added_up_by_package(stats: cProfileStats) -> None:
    frame = stats.group_by("package").to_dataframe()
    assert list(frame.columns) == [
        "package",
        "functions",
        "primitive_calls",
        "calls",
        "self_seconds",
        "cumulative_seconds",
    ]
    assert {row[0]: tuple(row[1:]) for row in frame.itertuples(index=False)} == {
        "torch": (2, 10, 12, 5.5, 6.0),  # entered from the step only: calls inside it do not count again
        "application code": (2, 4, 4, 1.5, 10.0),  # nobody calls the step
        "standard library": (1, 2, 2, 1.5, 2.0),
        "built-in": (1, 9, 9, 1.5, 1.5),
    }
    assert frame["self_seconds"].sum() == pytest.approx(10.0)
    assert set(stats.group_by("module").to_dataframe()["module"]) >= {"torch.nn.functional", "json.decoder"}
    assert len(stats.group_by("file").to_dataframe()) == 6


def test_an_unknown_grouping_is_refused(stats: cProfileStats) -> None:
    with pytest.raises(ArgumentError, match="by='line': must be one of module, package, file"):
        stats.group_by("line")  # type: ignore[arg-type]


def test_functions_are_filtered_by_package_and_path(stats: cProfileStats) -> None:
    assert {row.name for row in stats.application_code().to_dataframe().itertuples()} == {"step", "load"}
    assert {row.name for row in stats.only(package="torch").to_dataframe().itertuples()} == {"_call_impl", "linear"}
    only = stats.only(package="torch", path=r"modules/")
    assert isinstance(only, cProfileStats)
    assert list(only.ps.stats) == [CALL]  # type: ignore[attr-defined]
    assert only.ps.stats[CALL] == STATS[CALL]  # type: ignore[attr-defined]
    assert only.spans == stats.spans


@pytest.mark.parametrize(
    ("words", "message"), [({}, "give package or path"), ({"path": "("}, "must be a regular expression")]
)
def test_a_filter_that_says_nothing_is_refused(stats: cProfileStats, words: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stats.only(**words)


# -- comparison --------------------------------------------------------------------------------------------------------

AFTER: dict[Any, Any] = {
    STEP: (2, 2, 0.25, 9.0, {}),
    CALL: (4, 4, 4.0, 6.0, {STEP: (4, 4, 4.0, 6.0)}),
    (LINEAR[0], 21, "linear"): (6, 6, 3.5, 4.0, {}),
    LEN: (18, 18, 1.5, 1.5, {}),
    ("/opt/ml/code/new.py", 1, "fresh"): (1, 1, 0.125, 0.125, {}),
}


def test_a_comparison_tells_what_changed(stats: cProfileStats) -> None:
    change = stats.diff(stats_of(AFTER))
    assert isinstance(change, StatsDiff)
    assert list(change.slower()["name"]) == ["_call_impl"]
    assert change.slower().iloc[0]["self_seconds_change"] == 2.0
    assert list(change.faster()["name"]) == ["step"]
    assert list(change.slower("self_seconds_per_call")["name"]) == ["_call_impl"]
    assert set(change.faster("self_seconds_per_call")["name"]) == {"step", LEN[2]}
    assert list(change.faster("cumulative_seconds")["name"]) == ["step"]
    assert set(change.new["name"]) == {"linear", "fresh"}
    assert set(change.gone["name"]) == {"linear", "load", "decode"}
    frame = change.to_dataframe()
    assert list(frame["self_seconds_change"].abs()) == sorted(frame["self_seconds_change"].abs(), reverse=True)


def test_lines_may_be_ignored_where_code_was_edited(stats: cProfileStats) -> None:
    change = diff(stats, stats_of(AFTER), ignore_lines=True)
    assert "linear" not in {*change.new["name"], *change.gone["name"]}
    assert "linear" not in {*change.slower()["name"], *change.faster()["name"]}


def test_ranges_of_different_length_compare_per_span(tmp_path: Path) -> None:
    for step in range(10):
        write_step(tmp_path, step, calls=4 if step < 6 else 8)
    with cProfileAnalysis(str(tmp_path)) as analysis:
        before, after = (
            found(analysis.fetch_profile_stats_by_step(0, 5)),
            found(analysis.fetch_profile_stats_by_step(6, 9)),
        )
    (row,) = before.diff(after).to_dataframe().to_dict("records")
    assert (row["calls_before"], row["calls_after"], row["self_seconds_before"], row["self_seconds_after"]) == (
        4,
        8,
        1,
        2,
    )
    assert row["self_seconds_per_call_change"] == pytest.approx(0.0)


@pytest.mark.parametrize("by", ["calls", "nonsense"])
def test_an_unknown_change_is_refused(stats: cProfileStats, by: str) -> None:
    with pytest.raises(ArgumentError, match="must be one of self_seconds, cumulative_seconds, self_seconds_per_call"):
        stats.diff(stats).slower(by)


def test_nothing_found_cannot_be_compared(stats: cProfileStats) -> None:
    with pytest.raises(ArgumentError, match="after=None: must be a result of an analysis; None means that nothing"):
        stats.diff(None)  # type: ignore[arg-type]


# -- merged trees ------------------------------------------------------------------------------------------------------


def frame(name: str, seconds: float, *children: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A frame as pyinstrument writes it."""
    file = more.pop("file", f"/app/{name}.py")
    return {"function": name, "file_path": file, "line_no": 1, "time": seconds, "children": list(children)} | more


SESSIONS = [
    frame(
        "main", 1.0, frame("a", 0.6, frame("[self]", 0.1, file=""), frame("b", 0.5, group_id="one")), frame("b", 0.3)
    ),
    frame("main", 2.0, frame("a", 1.5, frame("b", 0.25), group_id="two"), frame("c", 0.5)),
]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """A run with two sessions of training, and one that was not recorded."""
    for step, root in enumerate([*SESSIONS, None]):
        write_step(tmp_path, step, profiler="pyinstrument").write_text(json.dumps({"root_frame": root}))
    return tmp_path


def shape(node: dict[str, Any]) -> Any:
    """A frame without what does not matter."""
    return node["function"], pytest.approx(node["time"]), [shape(child) for child in node["children"]]


MERGED: Any = ("main", 3.0, [("a", 2.1, [("b", 0.75, [])]), ("c", 0.5, []), ("b", 0.3, [])])


def test_sessions_merge_into_one_tree_by_the_path_of_their_frames(sessions: Path) -> None:
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        by_pair = analysis.fetch_profile_stats_by_training_phase()
        by_job = analysis.fetch_profile_stats_by_job_phase()
        by_step = found(analysis.fetch_profile_stats_by_step(0, 9))
    assert list(by_pair) == [(TRAIN, TRAIN)]
    assert {name for name, tree in by_job.items() if tree is not None} == {"training_loop"}
    loop = by_job["training_loop"]
    assert loop is not None
    for tree in (by_pair[TRAIN, TRAIN], loop, by_step.merged):
        assert isinstance(tree, PyinstrumentTree)
        assert shape(tree.json_stats["root_frame"]) == MERGED
        assert tree.json_stats["duration"] == pytest.approx(3.0)
        assert tree.spans == tree.json_stats["session_count"] == 3
    assert len(by_step) == 3
    assert by_step[2].json_stats == {"root_frame": None}


def test_a_merged_tree_is_a_table_of_functions_and_one_of_paths(sessions: Path) -> None:
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        tree = found(analysis.fetch_profile_stats_by_step(0, 9))
    functions: Any = {row.name: (row.self_seconds, row.cumulative_seconds) for row in tree.to_dataframe().itertuples()}
    assert functions == {
        "main": (pytest.approx(0.1), pytest.approx(3.0)),
        "a": (pytest.approx(1.35), pytest.approx(2.1)),
        "b": (pytest.approx(1.05), pytest.approx(1.05)),
        "c": (pytest.approx(0.5), pytest.approx(0.5)),
    }
    assert "calls" not in tree.to_dataframe().columns
    paths = tree.merged.paths_to_dataframe()
    assert list(paths["path"]) == ["main", "main;a", "main;a;b", "main;c", "main;b"]
    assert np.allclose(paths["seconds"], [3.0, 2.1, 0.75, 0.5, 0.3])


def test_sessions_can_what_other_results_can(sessions: Path) -> None:
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        first, second = (found(analysis.fetch_profile_stats_by_step(step)) for step in (0, 1))
    assert list(first.group_by("package").to_dataframe()["package"]) == ["application code"]
    assert len(first.application_code().to_dataframe()) == 3
    assert len(first.only(path="/a").to_dataframe()) == 3
    change = first.diff(second)
    assert list(change.slower()["name"]) == ["a"]
    assert set(change.new["name"]) == {"c"}
    with pytest.raises(ArgumentError, match="by='self_seconds_per_call'"):
        change.slower("self_seconds_per_call")
    with pytest.raises(ArgumentError, match="is of another profiler"):
        first.diff(stats_of(STATS))


def test_a_filtered_tree_hangs_what_stays_on_the_nearest_frame_that_stays(sessions: Path) -> None:
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        tree = found(analysis.fetch_profile_stats_by_step(0, 9)).only(path="/(main|b).py")
    assert shape(tree.json_stats["root_frame"]) == ("main", 1.15, [("b", 1.05, [])])
    assert {row.name for row in tree.to_dataframe().itertuples()} == {"main", "b"}
    assert list(tree.paths_to_dataframe()["path"]) == ["main", "main;b"]


def test_what_is_done_to_ps_changes_nothing_else(stats: cProfileStats) -> None:
    for result in (stats, cProfileStats.of_table(lambda: stats.table)):
        result.ps.strip_dirs()
        result.ps.add(stats_of(AFTER).ps)
        assert len(result.function_stats_list) == len(STATS)
        assert result.function_stats_list[0].function_name == f"{STEP[0]}:10(step)"
        assert len(result.to_dataframe()) == len(STATS)


def test_a_stream_that_was_chosen_is_kept(stats: cProfileStats, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = io.StringIO()
    round_trip = cProfileStats.of_table(lambda: stats.table)
    with contextlib.redirect_stdout(io.StringIO()):
        assert round_trip.ps
    round_trip.print_top_n_functions(Metrics.TOTAL_TIME, 1)
    assert "linear" in capsys.readouterr().out
    round_trip.ps.stream = chosen  # type: ignore[attr-defined]
    round_trip.print_top_n_functions(Metrics.TOTAL_TIME, 1)
    assert "linear" in chosen.getvalue()
    assert capsys.readouterr().out == ""


def test_callers_that_are_only_counted_are_taken() -> None:
    counted = stats_of({STEP: (1, 1, 1.0, 1.0, {}), LOAD: (3, 3, 1.0, 1.0, {STEP: 3})})
    assert counted.table.callers is not None
    assert counted.table.callers.measures.calls.tolist() == [3]
    assert "2 functions" not in repr(counted)


def test_sessions_can_be_pickled(sessions: Path) -> None:
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        session = found(analysis.fetch_profile_stats_by_step(0))[0]
        everything = found(analysis.fetch_profile_stats_by_step(0, 9))
        again_all = pickle.loads(pickle.dumps(everything))
        assert [one.json_stats for one in again_all] == [one.json_stats for one in everything]
        assert again_all.merged.json_stats == everything.merged.json_stats
    again = pickle.loads(pickle.dumps(session))
    assert (again.json_stats, again.html_file_path) == (session.json_stats, session.html_file_path)


def test_other_results_can_be_pickled_and_read_as_text(stats: cProfileStats) -> None:
    assert stats.ps
    again = pickle.loads(pickle.dumps(stats))
    assert again.ps.stats == stats.ps.stats  # type: ignore[attr-defined]
    assert "torch" in repr(stats.group_by("package"))
    assert "linear" in repr(stats.diff(stats_of(AFTER)))
    assert repr(stats) == "<cProfileStats: Functions of 1 span>"


def test_in_a_notebook_the_tree_is_shown_in_a_frame_of_its_own(sessions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.analysis.sessions.in_notebook", lambda: True)
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        shown = found(analysis.fetch_profile_stats_by_step(0, 9)).show()._repr_html_()
    assert shown.startswith("<iframe")
    assert "<script" not in shown
    assert "pyinstrumentHTMLRenderer" in shown


def test_sessions_with_different_roots_get_one_above_them(tmp_path: Path) -> None:
    for step, name in enumerate(["train", "serve"]):
        root = frame(name, 1.0 + step)
        write_step(tmp_path, step, profiler="pyinstrument").write_text(json.dumps({"root_frame": root}))
    with PyinstrumentAnalysis(str(tmp_path)) as analysis:
        merged = found(analysis.fetch_profile_stats_by_step(0, 1)).merged
    assert shape(merged.json_stats["root_frame"]) == ("[root]", 3.0, [("serve", 2.0, []), ("train", 1.0, [])])


def test_nothing_recorded_is_an_empty_tree(tmp_path: Path) -> None:
    write_step(tmp_path, 0, profiler="pyinstrument").write_text('{"root_frame": null}')
    with PyinstrumentAnalysis(str(tmp_path)) as analysis:
        merged = found(analysis.fetch_profile_stats_by_step(0)).merged
    assert merged.json_stats["root_frame"] is None
    assert len(merged.paths_to_dataframe()) == len(merged.to_dataframe()) == 0
    assert merged.to_html()


# -- display -----------------------------------------------------------------------------------------------------------


def test_results_show_themselves_in_a_notebook_and_escape_names(stats: cProfileStats, sessions: Path) -> None:
    evil = stats_of({("/x.py", 1, "<script>alert(1)</script>"): (1, 1, 0.5, 0.5, {})})
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        tree = found(analysis.fetch_profile_stats_by_step(0, 9))
    for result in (stats, evil, stats.group_by("package"), stats.diff(evil), tree, tree.merged):
        page = result._repr_html_()
        assert page.startswith("<div><p><b>")
        assert "<table" in page
        assert "<script" not in page
    assert "Call tree of 3 spans, 2.4 s from 2026-11-30" in tree._repr_html_()
    assert "&lt;script&gt;" in evil._repr_html_()
    many = stats_of({("/x.py", line, "f"): (1, 1, 0.5, 0.5, {}) for line in range(1, 50)})
    assert "(first 20 of 49)" in many._repr_html_()


def test_show_writes_a_page_or_opens_a_browser(sessions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with PyinstrumentAnalysis(str(sessions)) as analysis:
        tree = found(analysis.fetch_profile_stats_by_step(0, 9))
    assert tree.show(tmp_path / "tree.html") == str(tmp_path / "tree.html")
    assert "pyinstrumentHTMLRenderer" in (tmp_path / "tree.html").read_text()
    assert not opened
    page = tree.show()
    assert opened == [Path(page).as_uri()]
    assert Path(page).parent == tmp_path
