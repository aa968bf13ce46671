"""Questions as requests to a daemon's socket, and its answers as the tables that results are made of. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monitor.answers import FrameTable, SpanRow
from monitor.api.schema import ProfileAnswer, StatsAnswer, TreeAnswer
from monitor.client import Word
from monitor.errors import ArgumentError
from monitor.profiles.columns import NO_PARENT, FunctionName
from monitor.selection import (
    NO_END_STEP,
    BetweenModes,
    ByStep,
    ByStepDocumented,
    ByTime,
    PostHookClose,
    PreStepZero,
    Question,
)
from monitor.spans import LARGEST_STEP, parse_any_name
from monitor.tables import CallerTable, FunctionRow, Measures, StatsTable


def request_of(question: Question) -> tuple[str, dict[str, Word]]:
    """Return the path and the words that ask a question."""
    match question:
        case ByStep() | ByStepDocumented():
            words: dict[str, Word] = {
                "start": step_word("start_step", question.start_step),
                "end": None if question.end_step is None else step_word("end_step", question.end_step),
                "mode": question.mode.word,
                "start_phase": question.start_phase.value,
                "end_phase": question.end_phase.value,
                "rule": "original" if isinstance(question, ByStep) else "documented",
            }
            return "/v1/stats/step", words
        case ByTime(start=start, end=end, overlap=overlap):
            return "/v1/stats/time", {"start": finite(start), "end": finite(end), "overlap": overlap}
        case BetweenModes(start_mode=start_mode, end_mode=end_mode):
            return "/v1/stats/modes", {"start_mode": start_mode.word, "end_mode": end_mode.word}
        case PreStepZero():
            return "/v1/stats/pre-step-zero", {}
        case PostHookClose():
            return "/v1/stats/post-hook-close", {}
        case _:
            raise TypeError(f"the socket has no route for {question}")


def step_word(name: str, step: int) -> int:
    """Write a step for the socket, which has none below 0."""
    if step < 0:
        raise ArgumentError(name, step, "must be 0 or more where a daemon answers")
    return LARGEST_STEP if step == NO_END_STEP else step


def finite(seconds: float) -> float:
    """Write a time for the socket, which takes no infinities."""
    return float(np.clip(seconds, -1e15, 1e15))


def row_of(profile: ProfileAnswer) -> SpanRow:
    """Read a span."""
    return SpanRow(
        job=profile.job,
        framework=profile.framework,
        profiler=profile.profiler_name,
        node=profile.node_id,
        name=profile.span,
        span=parse_any_name(profile.span),
        path=profile.stats_path,
    )


def table_of_answer(answer: StatsAnswer, *, counts_calls: bool) -> StatsTable:
    """Read a table of functions."""
    numbers: dict[FunctionName, int] = {}
    function = [numbers.setdefault(row.key, len(numbers)) for row in answer.functions]
    edges = [
        (place, row) for place, parent in zip(function, answer.functions, strict=True) for row in callers_of(parent)
    ]
    caller = [numbers.setdefault(row.key, len(numbers)) for _, row in edges]
    return StatsTable(
        spans=answer.spans,
        from_seconds=answer.from_,
        to_seconds=answer.to,
        counts_calls=counts_calls,
        names=list(numbers),
        function=np.asarray(function, dtype=np.int32),
        measures=measures_of(answer.functions),
        callers=CallerTable(
            function=np.asarray([place for place, _ in edges], dtype=np.int32),
            caller=np.asarray(caller, dtype=np.int32),
            measures=measures_of([row for _, row in edges]),
        ),
    )


def callers_of(row: FunctionRow) -> Sequence[FunctionRow]:
    """Return a function's callers."""
    return row.callers if isinstance(row.callers, list) else ()


def measures_of(rows: Sequence[FunctionRow]) -> Measures:
    """Turn rows into columns."""
    return Measures(
        calls=np.asarray([row.calls or 0 for row in rows], dtype=np.int64),
        primitive_calls=np.asarray([row.primitive_calls or 0 for row in rows], dtype=np.int64),
        self_seconds=np.asarray([row.self_seconds for row in rows], dtype=np.float64),
        cumulative_seconds=np.asarray([row.cumulative_seconds for row in rows], dtype=np.float64),
    )


def tree_of_answer(answer: TreeAnswer) -> FrameTable:
    """Read a call tree."""
    numbers: dict[FunctionName, int] = {}
    function = [numbers.setdefault((row.file, row.line, row.name), len(numbers)) for row in answer.frames]
    return FrameTable(
        names=list(numbers),
        path_parent=np.asarray(
            [NO_PARENT if row.parent is None else row.parent for row in answer.frames], dtype=np.int32
        ),
        path_function=np.asarray(function, dtype=np.int32),
        self_seconds=np.asarray([row.self_seconds for row in answer.frames], dtype=np.float64),
        spans=answer.spans,
        from_seconds=answer.from_,
        to_seconds=answer.to,
    )
