"""The original's answers and ours in one form, and what it means that they are equal (design section 4)."""

from __future__ import annotations

import pstats
import re
from typing import Any, TypeAlias, TypeVar

import pandas as pd
import pytest

from monitor.analysis import PythonProfileAnalysis, cProfileStats
from monitor.spans import PHASES_BY_WORD, PythonProfileModes

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
Row: TypeAlias = tuple[float, float, float, float, dict[str, tuple[float, ...]]]


ResultT = TypeVar("ResultT")


def found(result: ResultT | None) -> ResultT:
    """Hold that something was found."""
    assert result is not None
    return result


def arguments_of(words: dict[str, Any]) -> dict[str, Any]:
    """Turn words on disk into what the classes take."""
    values = dict(words)
    for name in ("mode", "start_mode", "end_mode"):
        if name in values:
            values[name] = PythonProfileModes.from_word(values[name])
    for name in ("start_phase", "end_phase"):
        if name in values:
            values[name] = PHASES_BY_WORD[values[name]]
    return values


def ask(analysis: PythonProfileAnalysis[Any], method: str, words: dict[str, Any]) -> Any:
    """Ask one question in the words of the query files."""
    name = "fetch_profile_stats_by_job_phase" if method == "documented_job_phases" else method
    return getattr(analysis, name)(**arguments_of(words))


def functions_of(ps: pstats.Stats) -> dict[str, Row]:
    """Put a pstats.Stats into the form of the original's answers."""
    label = pstats.func_std_string  # type: ignore[attr-defined]
    stats = ps.stats  # type: ignore[attr-defined]
    return {
        label(key): (cc, nc, tt, ct, {label(caller): values for caller, values in callers.items()})
        for key, (cc, nc, tt, ct, callers) in stats.items()
    }


def without_addresses(answer: dict[str, Any]) -> dict[str, Row]:
    """Drop the addresses of an answer and add up what then coincides."""
    merged: dict[str, Row] = {}
    for name, (primitive, calls, own, total, callers) in answer.items():
        key = ADDRESS.sub("", name)
        before = merged.get(key, (0, 0, 0.0, 0.0, {}))
        into = dict(before[4])
        for caller, values in callers.items():
            caller_key = ADDRESS.sub("", caller)
            old = into.get(caller_key, (0, 0, 0.0, 0.0))
            into[caller_key] = tuple(a + b for a, b in zip(old, values, strict=True))
        merged[key] = (before[0] + primitive, before[1] + calls, before[2] + own, before[3] + total, into)
    return merged


def assert_same_functions(mine: dict[str, Row], original: dict[str, Row]) -> None:
    assert mine.keys() == original.keys()
    for name, row in mine.items():
        expected = original[name]
        assert row[:2] == expected[:2], name
        assert row[2:4] == pytest.approx(expected[2:4], rel=1e-9, abs=0), name
        assert row[4].keys() == expected[4].keys(), name
        for caller, values in row[4].items():
            assert tuple(values[:2]) == tuple(expected[4][caller][:2]), (name, caller)
            assert values[2:] == pytest.approx(expected[4][caller][2:], rel=1e-9, abs=0), (name, caller)


def assert_same(mine: Any, original: Any) -> None:
    """Compare one answer of ours with one of the original."""
    if original is None:
        assert mine is None
    elif isinstance(mine, cProfileStats):
        assert_same_functions(functions_of(mine.ps), without_addresses(original))
    elif isinstance(mine, pd.DataFrame):
        assert_same_list(mine, original)
    elif isinstance(mine, dict):
        named = {key if isinstance(key, str) else ",".join(mode.word for mode in key): mine[key] for key in mine}
        assert named.keys() == original.keys()
        for key, value in named.items():
            assert_same(value, original[key])
    elif isinstance(mine, list) and mine and not isinstance(mine[0], str):
        assert [session.json_stats for session in mine] == original
    else:
        assert mine == original


def assert_same_list(mine: pd.DataFrame, original: list[dict[str, Any]]) -> None:
    if not original:
        assert not len(mine)
        return
    frame = mine.copy()
    for column in ("start_phase", "end_phase"):
        frame[column] = [phase.value for phase in frame[column]]
    assert list(mine.columns) == [*original[0], "stats_path"]
    assert frame.drop(columns="stats_path").to_dict("records") == original
