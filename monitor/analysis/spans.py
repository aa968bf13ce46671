"""Spans as the original library shows them: one record for each stats file, and a DataFrame of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from monitor.answers import SpanRow
from monitor.finding import SpanListing
from monitor.rows import columns_of
from monitor.selection import NO_END_STEP, ByTime, in_step_interval
from monitor.spans import Moment, PythonProfileModes, Span, StepPhase, parse_any_name


class StepPythonProfileStats:
    """What is known of one stats file, by the name of its folder.

    Attributes:
        profiler_name: "cprofile" or "pyinstrument". framework: such as "pytorch". node_id: who wrote it.
        start_mode, end_mode: PythonProfileModes. start_phase, end_phase: StepPhase.
        start_step: -1 for `*`, before step 0. end_step: infinity for `*`, the end of the script.
        start_time_since_epoch_in_micros, end_time_since_epoch_in_micros: microseconds.
        stats_path: the file: `python_stats`, `python_stats.json` or `python_stats.html`.
    """

    def __init__(self, framework: str, profiler_name: str, node_id: str, stats_dir: str, stats_path: str) -> None:
        self._fill(framework, profiler_name, node_id, parse_any_name(stats_dir), stats_path)

    @classmethod
    def of_row(cls, row: SpanRow, path: str) -> StepPythonProfileStats:
        """Describe one file of a span of the index."""
        made = cls.__new__(cls)
        made._fill(row.framework, row.profiler, row.node, row.span, path)
        return made

    def _fill(self, framework: str, profiler: str, node: str, span: Span, path: str) -> None:
        self.profiler_name = profiler
        self.framework = framework
        self.node_id = node
        self.start_mode = span.start.mode
        self.start_step = span.start_step
        self.start_phase = span.start.phase
        self.start_time_since_epoch_in_micros = span.start.time_us
        self.end_mode = span.end.mode
        self.end_step = span.end_step
        self.end_phase = span.end.phase
        self.end_time_since_epoch_in_micros = span.end.time_us
        self.stats_path = path

    def has_start_and_end_mode(self, start_mode: PythonProfileModes, end_mode: PythonProfileModes) -> bool:
        """Tell whether it starts and ends in these modes."""
        return self.start_mode == start_mode and self.end_mode == end_mode

    def in_time_interval(self, start_time_since_epoch_in_micros: float, end_time_since_epoch_in_micros: float) -> bool:
        """Tell whether its start or its end lies in the interval."""
        seconds = (start_time_since_epoch_in_micros / 1e6, end_time_since_epoch_in_micros / 1e6)
        return bool(ByTime(start=seconds[0], end=seconds[1]).mask(columns_of([self._span()]))[0])

    def in_step_interval(self, start_step: int, end_step: int, start_phase: StepPhase, end_phase: StepPhase) -> bool:
        """Tell whether it lies in the interval of steps, both ends included, by the original's rule."""
        return bool(in_step_interval(columns_of([self._span()]), start_step, end_step, start_phase, end_phase)[0])

    def has_pre_step_zero_profile_stats(self) -> bool:
        """Tell whether it begins before step 0."""
        return self.start_phase is StepPhase.START

    def has_post_hook_close_profile_stats(self) -> bool:
        """Tell whether it ends with the hook or after it."""
        return self.end_phase is StepPhase.END

    def has_node_id(self, node_id: str) -> bool:
        """Tell whether this node wrote it."""
        return self.node_id == node_id

    def _span(self) -> Span:
        start_step = None if self.start_step < 0 else self.start_step
        end_step = None if math.isinf(self.end_step) else int(self.end_step)
        start = Moment(self.start_mode, start_step, self.start_phase, self.start_time_since_epoch_in_micros)
        end = Moment(self.end_mode, end_step, self.end_phase, self.end_time_since_epoch_in_micros)
        return Span("", start, end)

    def __repr__(self) -> str:
        return repr(self.__dict__)


class Places(Protocol):
    """Knows where files lie."""

    def place(self, path: str) -> str:
        """Return where a data file lies for whoever wants to open it."""

    def picture(self, path: str) -> str | None:
        """Return where the picture beside a data file lies; None where there is none."""


def stats_files(rows: Iterable[SpanRow], places: Places) -> list[StepPythonProfileStats]:
    """List the files of spans, as the original does: of a sampled session its data, and its picture if it is there."""
    files: list[StepPythonProfileStats] = []
    for row in rows:
        files.append(StepPythonProfileStats.of_row(row, places.place(row.path)))
        picture = places.picture(row.path) if row.profiler == "pyinstrument" else None
        if picture is not None:
            files.append(StepPythonProfileStats.of_row(row, picture))
    return files


def stats_frame(listing: SpanListing, places: Places) -> tuple[pd.DataFrame, bool]:
    """Lay the files of spans out as the original's DataFrame: modes as words, phases as StepPhase, times in
    microseconds, steps of `*` as -1 at the start and infinity at the end.

    Returns:
        Also whether every sampled session has its picture; one that has none may get it later.
    """
    said, keys = listing.said, listing.keys
    columns: dict[str, Any] = {
        name: objects([getattr(key, word) for key in keys])[listing.series] for name, word in SERIES_COLUMNS.items()
    }
    columns |= {
        "start_mode": MODE_WORDS_BY_NUMBER[said.start_mode],
        "start_step": said.start_step,
        "start_phase": PHASES_BY_ORDER[said.start_phase],
        "start_time_since_epoch_in_micros": said.start_us,
        "end_mode": MODE_WORDS_BY_NUMBER[said.end_mode],
        "end_step": end_steps(said.end_step),
        "end_phase": PHASES_BY_ORDER[said.end_phase],
        "end_time_since_epoch_in_micros": said.end_us,
        "stats_path": objects([places.place(path) for path in listing.paths]),
    }
    complete = True
    sampled = np.asarray([key.profiler == "pyinstrument" for key in keys], dtype=np.bool_)
    if sampled.any():
        there = [
            places.picture(path) if sampled[key] else None
            for path, key in zip(listing.paths, listing.series, strict=True)
        ]
        columns = with_pictures(columns, there)
        complete = len(columns["stats_path"]) == len(there) + int(sampled[listing.series].sum())
    return pd.DataFrame(columns), complete


def with_pictures(columns: dict[str, Any], pictures: list[str | None]) -> dict[str, Any]:
    """Add a row for each picture, below the row of its data."""
    there = np.asarray([picture is not None for picture in pictures], dtype=np.bool_)
    rows = np.repeat(np.arange(len(there)), 1 + there)
    doubled = {name: values[rows] for name, values in columns.items()}
    second = np.cumsum(1 + there)[there] - 1
    doubled["stats_path"][second] = [picture for picture in pictures if picture is not None]
    return doubled


def objects(values: Sequence[object]) -> npt.NDArray[np.object_]:
    """Make a column of objects."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def end_steps(steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Put infinity where the name has `*`, which makes the whole column one of floats, as in the original."""
    open_end = steps == NO_END_STEP
    return np.where(open_end, np.inf, steps.astype(np.float64)) if open_end.any() else steps


SERIES_COLUMNS = {"profiler_name": "profiler", "framework": "framework", "node_id": "node"}
MODE_WORDS_BY_NUMBER = objects([None, *(mode.word for mode in sorted(PythonProfileModes))])
PHASES_BY_ORDER = objects(list(StepPhase))
