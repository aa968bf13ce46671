"""pstats files: what pstats.Stats, snakeviz and gprof2dot make of them, call counts of callers included."""

from __future__ import annotations

import marshal
import pstats
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snakeviz.stats import json_stats, table_rows

from monitor.exports.pstats import to_pstats
from monitor.tables import CallerTable, Measures, StatsTable

MAIN, STEP, FORWARD = ("/app/train.py", 1, "main"), ("/app/train.py", 12, "step"), ("/app/model.py", 7, "forward")


def measures(rows: Sequence[tuple[int, int, float, float]]) -> Measures:
    """Columns of rows (calls, primitive calls, self seconds, cumulative seconds)."""
    calls, primitive, own, cumulative = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Measures(
        calls=np.array(calls, np.int64),
        primitive_calls=np.array(primitive, np.int64),
        self_seconds=np.array(own, np.float64),
        cumulative_seconds=np.array(cumulative, np.float64),
    )


def table(
    functions: Sequence[int] = (0, 1, 2),
    rows: Sequence[tuple[int, int, float, float]] = ((1, 1, 0.25, 4.0), (10, 10, 0.75, 3.75), (30, 20, 3.0, 3.0)),
    edges: Sequence[tuple[int, int]] = ((1, 0), (2, 1), (2, 2)),
    parts: Sequence[tuple[int, int, float, float]] = ((10, 10, 0.75, 3.75), (20, 19, 2.0, 3.0), (10, 1, 1.0, 1.0)),
) -> StatsTable:
    """main calls step ten times, which calls forward, which calls itself."""
    return StatsTable(
        spans=1,
        from_seconds=1.0,
        to_seconds=5.0,
        counts_calls=True,
        names=[MAIN, STEP, FORWARD],
        function=np.array(functions, np.int32),
        measures=measures(rows),
        callers=CallerTable(
            function=np.array([edge[0] for edge in edges], np.int32),
            caller=np.array([edge[1] for edge in edges], np.int32),
            measures=measures(parts),
        ),
    )


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    """The table above as a file."""
    path = tmp_path / "answer.pstats"
    path.write_bytes(to_pstats(table()))
    return path


def loaded(path: Path) -> Any:
    """Load a file with the standard library, whose types leave the dictionary out."""
    return pstats.Stats(str(path))


def test_a_caller_has_its_call_counts_the_other_way_round() -> None:
    assert marshal.loads(to_pstats(table())) == {
        MAIN: (1, 1, 0.25, 4.0, {}),
        STEP: (10, 10, 0.75, 3.75, {MAIN: (10, 10, 0.75, 3.75)}),
        FORWARD: (20, 30, 3.0, 3.0, {STEP: (20, 19, 2.0, 3.0), FORWARD: (10, 1, 1.0, 1.0)}),
    }


def test_it_stands_as_python_itself_writes_it(tmp_path: Path) -> None:
    code = "import cProfile\ndef f(n): return n and f(n - 1)\ncProfile.run('f(2)', 'own.pstats')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    stats = loaded(tmp_path / "own.pstats").stats
    (value,) = [value for key, value in stats.items() if key[2] == "f"]
    (own,) = [part for caller, part in value[4].items() if caller[2] == "f"]
    assert (value[:2], own[:2]) == ((1, 3), (2, 1))  # the primitive calls stand first, but last for a caller


def test_the_standard_library_reads_totals_and_callers(answer: Path) -> None:
    stats = loaded(answer)
    assert (stats.total_calls, stats.prim_calls, stats.total_tt) == (41, 31, 4.0)
    stats.calc_callees()
    assert stats.all_callees[MAIN] == {STEP: (10, 10, 0.75, 3.75)}
    assert stats.all_callees[FORWARD] == {FORWARD: (10, 1, 1.0, 1.0)}


def test_the_standard_library_prints_callers_with_their_counts(
    answer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pstats.Stats(str(answer)).print_callers("forward")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["20/19", "2.000", "3.000", "/app/train.py:12(step)"] in lines
    assert any(line[-4:] == ["10/1", "1.000", "1.000", "/app/model.py:7(forward)"] for line in lines)


def test_two_answers_add_up_in_the_standard_library(answer: Path) -> None:
    stats = loaded(answer)
    stats.add(str(answer))
    assert stats.stats[FORWARD][:4] == (40, 60, 6.0, 6.0)
    assert stats.stats[FORWARD][4][STEP] == (40, 38, 4.0, 6.0)


def test_snakeviz_shows_the_same_numbers(answer: Path) -> None:
    stats = pstats.Stats(str(answer))
    rows = {row[-1]: row for row in table_rows(stats)}
    assert rows["/app/model.py:7(forward)"][0] == ["30/20", 30]
    shown = json_stats(stats)
    assert shown["/app/model.py:7(forward)"]["callers"]["/app/train.py:12(step)"] == [20, 19, 2.0, 3.0]
    assert shown["/app/train.py:12(step)"]["children"] == {"/app/model.py:7(forward)": [20, 19, 2.0, 3.0]}


def test_gprof2dot_draws_the_graph(answer: Path) -> None:
    command = [sys.executable, "-m", "gprof2dot", "-f", "pstats", "-n", "0", "-e", "0", str(answer)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("digraph")
    assert "model:7:forward" in done.stdout
    assert "30×" in done.stdout
    assert done.stderr == ""


def test_a_caller_without_a_row_gets_an_entry_of_zeros(tmp_path: Path) -> None:
    cut = table(functions=[2], rows=[(30, 20, 3.0, 3.0)], edges=[(2, 1)], parts=[(20, 19, 2.0, 3.0)])
    path = tmp_path / "cut.pstats"
    path.write_bytes(to_pstats(cut))
    stats = loaded(path)
    assert stats.stats[STEP] == (0, 0, 0, 0, {})
    assert stats.stats[FORWARD][4] == {STEP: (20, 19, 2.0, 3.0)}
    command = [sys.executable, "-m", "gprof2dot", "-f", "pstats", str(path)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    assert json_stats(pstats.Stats(str(path)))


def test_without_functions_it_is_an_empty_dictionary() -> None:
    empty = table(functions=[], rows=[], edges=[], parts=[])
    assert marshal.loads(to_pstats(empty)) == {}
