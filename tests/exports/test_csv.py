"""CSV: one row a function, its callers below it, and names that come back whatever is in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from monitor.exports.csv import to_csv
from monitor.profiles.columns import FunctionName
from monitor.tables import CallerTable, Measures, StatsTable

STEP, FORWARD, LEN = ("/app/train.py", 12, "step"), ("/app/model.py", 7, "forward"), ("~", 0, "<built-in method len>")


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
    names: Sequence[FunctionName], *, counts_calls: bool = True, callers: CallerTable | None = None
) -> StatsTable:
    rows = [(3 + place, 2 + place, 0.5 + place, 1.25 + place) for place in range(len(names))]
    return StatsTable(
        spans=1,
        from_seconds=1.0,
        to_seconds=2.0,
        counts_calls=counts_calls,
        names=names,
        function=np.arange(len(names), dtype=np.int32),
        measures=measures(rows),
        callers=callers,
    )


def test_a_function_is_a_row() -> None:
    assert to_csv([((), table([STEP, LEN]))], (), callers=False) == (
        "file,line,name,primitive_calls,calls,self_seconds,cumulative_seconds\r\n"
        "/app/train.py,12,step,2,3,0.5,1.25\r\n"
        "~,0,<built-in method len>,3,4,1.5,2.25\r\n"
    )


def test_callers_follow_their_function_with_the_part_that_came_through_them() -> None:
    callers = CallerTable(
        function=np.array([1, 1], np.int32),
        caller=np.array([0, 1], np.int32),
        measures=measures([(4, 3, 0.25, 0.75), (2, 1, 0.5, 0.5)]),
    )
    assert to_csv([((), table([STEP, FORWARD], callers=callers))], (), callers=True) == (
        "file,line,name,primitive_calls,calls,self_seconds,cumulative_seconds,caller_file,caller_line,caller_name\r\n"
        "/app/train.py,12,step,2,3,0.5,1.25,,,\r\n"
        "/app/model.py,7,forward,3,4,1.5,2.25,,,\r\n"
        "/app/model.py,7,forward,1,2,0.5,0.5,/app/model.py,7,forward\r\n"
        "/app/model.py,7,forward,3,4,0.25,0.75,/app/train.py,12,step\r\n"
    )


def test_tables_stand_below_each_other_with_their_phase_first() -> None:
    tables = [(("train", "eval"), table([STEP])), (("eval", "train"), table([FORWARD]))]
    rows = list(csv.reader(io.StringIO(to_csv(tables, ("start_mode", "end_mode"), callers=False))))
    assert [row[:5] for row in rows] == [
        ["start_mode", "end_mode", "file", "line", "name"],
        ["train", "eval", "/app/train.py", "12", "step"],
        ["eval", "train", "/app/model.py", "7", "forward"],
    ]


def test_without_functions_the_header_stays() -> None:
    text = to_csv([(("training_loop",), table([]))], ("job_phase",), callers=False)
    assert text == "job_phase,file,line,name,primitive_calls,calls,self_seconds,cumulative_seconds\r\n"


def test_a_sampler_leaves_its_calls_empty() -> None:
    text = to_csv([((), table([STEP], counts_calls=False))], (), callers=False)
    assert text.splitlines()[1] == "/app/train.py,12,step,,,0.5,1.25"


def test_names_come_back_whatever_is_in_them() -> None:
    names = [('a,b";\n', 1, "x\r\ny"), ("é\u2028", 2, "\t'"), ("\r", 3, '"'), ("", 4, " space ")]
    text = to_csv([((), table(names))], (), callers=False)
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    assert [(row[0], int(row[1]), row[2]) for row in rows] == names


def test_seconds_come_back_exactly() -> None:
    numbers = measures([(1, 1, 0.1 + 0.2, 1e-9), (1, 1, -1e-7, 123456789.123456789)])
    odd = StatsTable(
        spans=1,
        from_seconds=1.0,
        to_seconds=2.0,
        counts_calls=True,
        names=[STEP, LEN],
        function=np.array([0, 1], np.int32),
        measures=numbers,
    )
    rows = list(csv.reader(io.StringIO(to_csv([((), odd)], (), callers=False))))[1:]
    assert [float(row[5]) for row in rows] == numbers.self_seconds.tolist()
    assert [float(row[6]) for row in rows] == numbers.cumulative_seconds.tolist()
