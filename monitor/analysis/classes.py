"""The notebook classes: the calls of smdebug 1.0.34's `PythonProfileAnalysis` and of its published documentation.

Each call is checked, becomes a question, and is answered by whatever stands behind: a folder, a bucket or a daemon. The
rules of selection stand in monitor.selection; where the original and its documentation differ, each name has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import pandas as pd

from monitor.analysis import arguments as a
from monitor.analysis.answering import Selected, always
from monitor.analysis.functions import cProfileStats
from monitor.analysis.opening import open_answers
from monitor.analysis.sessions import PyinstrumentSessions, PyinstrumentStepStats, PyinstrumentTree
from monitor.analysis.spans import StepPythonProfileStats, stats_files, stats_frame
from monitor.answers import FrameTable, PhaseStats, Scope
from monitor.selection import (
    BetweenModes,
    ByStep,
    ByStepDocumented,
    ByTime,
    PostHookClose,
    PreStepZero,
    Question,
)
from monitor.spans import PythonProfileModes, StepPhase

Nodes: TypeAlias = str | Sequence[str]
Step: TypeAlias = int | str | float
ModePair: TypeAlias = tuple[PythonProfileModes, PythonProfileModes]

NOTHING_IN_INTERVAL = "No stats were found for the requested interval!"
NOTHING_AT_ALL = "No stats were found!"

ResultT = TypeVar("ResultT")
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class PythonProfileAnalysis(Generic[ResultT]):
    """Profiles of a training run, of both profilers; its results are lists of StepPythonProfileStats.

    Args:
        local_profile_dir: a folder of profiles: BASE/framework/FRAMEWORK/PROFILER as in the original, or any folder
            above or below it. With `s3_path`, where objects are kept once they are downloaded.
        s3_path: "s3://bucket/prefix", the base of the profiles in a bucket.
        socket: the query socket of a running daemon, which then answers instead of a folder.
        job: with `socket`, which job; needed where the daemon watches several.

    Every call takes in the newest files first, unless `refresh_stats=False`. `node_id` is "any", the node of the
    earliest span, as in the original; "all", all nodes together; a node; or a list of nodes. Where nothing is found a
    call prints one sentence and returns None.

    Raises:
        ArgumentError: an argument cannot be meant; it is a ValueError that names the argument.
        SourceUnavailable: nobody listens on the socket, or the bucket cannot be reached.
    """

    name: ClassVar[str] = ""

    def __init__(
        self,
        local_profile_dir: str | Path = "/tmp/python_stats",
        s3_path: str | None = None,
        *,
        socket: str | Path | None = None,
        job: str | None = None,
    ) -> None:
        self._answers = open_answers(local_profile_dir, s3_path, socket, job)
        self._frame: tuple[object, pd.DataFrame] | None = None

    # -- spans that a question selects ---------------------------------------------------------------------------------

    def fetch_profile_stats_by_step(
        self,
        start_step: Step,
        end_step: Step | None = None,
        mode: PythonProfileModes = PythonProfileModes.TRAIN,
        start_phase: StepPhase = StepPhase.STEP_START,
        end_phase: StepPhase = StepPhase.STEP_END,
        node_id: Nodes = "any",
        refresh_stats: bool = True,
    ) -> ResultT | None:
        """Fetch a range of steps, both ends included, by the rule of the original's code (`in_step_interval`).

        Phases matter only at the border steps: a `start_phase` of FORWARD_PASS_END or STEP_END, an `end_phase` of
        STEP_START. `end_step` left out is `start_step`.
        """
        chosen = steps(start_step, end_step, 0) | borders(mode, start_phase, end_phase)
        return self._fetch(ByStep(**chosen), node_id, refresh_stats)

    def fetch_python_profile_stats_by_step(
        self,
        start_step: Step,
        end_step: Step | None = None,
        mode: PythonProfileModes = PythonProfileModes.TRAIN,
        start_phase: StepPhase = StepPhase.STEP_START,
        end_phase: StepPhase = StepPhase.STEP_END,
        node_id: Nodes = "any",
        refresh_stats: bool = True,
    ) -> ResultT | None:
        """Fetch a range of steps, start_step <= step < end_step, by the rule of the published documentation.

        A span counts if it begins at or after `start_phase` of `start_step` and ends no later than `end_phase` of step
        `end_step - 1`; with `end_phase=STEP_START`, no later than the start of step `end_step`. `end_step` left out is
        `start_step + 1`.
        """
        chosen = steps(start_step, end_step, 1) | borders(mode, start_phase, end_phase)
        return self._fetch(ByStepDocumented(**chosen), node_id, refresh_stats)

    def fetch_profile_stats_by_time(
        self,
        start_time_since_epoch_in_secs: float,
        end_time_since_epoch_in_secs: float,
        node_id: Nodes = "any",
        refresh_stats: bool = True,
        *,
        overlap: str = "ends",
    ) -> ResultT | None:
        """Fetch the spans whose start or end lies in an interval of time, in seconds since the epoch.

        Args:
            overlap: "any" also takes spans that cover the whole interval, which the original misses.
        """
        names = ("start_time_since_epoch_in_secs", "end_time_since_epoch_in_secs")
        first = a.read_seconds(names[0], start_time_since_epoch_in_secs)
        last = a.read_seconds(names[1], end_time_since_epoch_in_secs)
        a.check_order(names[0], first, names[1], last)
        return self._fetch(ByTime(start=first, end=last, overlap=a.read_overlap(overlap)), node_id, refresh_stats)

    fetch_python_profile_stats_by_time = fetch_profile_stats_by_time

    def fetch_profile_stats_between_modes(
        self,
        start_mode: PythonProfileModes,
        end_mode: PythonProfileModes,
        node_id: Nodes = "any",
        refresh_stats: bool = True,
    ) -> ResultT | None:
        """Fetch the spans that start in one mode and end in the other."""
        start, end = a.read_mode("start_mode", start_mode), a.read_mode("end_mode", end_mode)
        return self._fetch(BetweenModes(start_mode=start, end_mode=end), node_id, refresh_stats)

    def fetch_pre_step_zero_profile_stats(self, node_id: Nodes = "any", refresh_stats: bool = True) -> ResultT | None:
        """Fetch what ran before step 0: spans that start in phase START."""
        return self._fetch(PreStepZero(), node_id, refresh_stats)

    def fetch_post_hook_close_profile_stats(self, node_id: Nodes = "any", refresh_stats: bool = True) -> ResultT | None:
        """Fetch what ended with the hook or after it: spans that end in phase END."""
        return self._fetch(PostHookClose(), node_id, refresh_stats)

    # -- lists -----------------------------------------------------------------------------------------------------

    def list_profile_stats(self, refresh_stats: bool = True) -> pd.DataFrame:
        """Return one row for each stats file by (start time, node), with the original's columns: profiler_name,
        framework, node_id, start_mode, start_step, start_phase, start_time_since_epoch_in_micros, the same of the end,
        and stats_path. A sampled session has two rows, its data and its picture."""
        self._refresh(refresh_stats)
        version = self._answers.version()
        if self._frame is None or version is None or self._frame[0] != version:
            frame, complete = stats_frame(self._answers.listing(self._scope("all")), self._answers)
            self._frame = (version if complete else None, frame)
        frame = self._frame[1]
        if not len(frame):
            say(NOTHING_AT_ALL)
            return pd.DataFrame()
        return frame.copy()

    def list_available_node_ids(self, refresh_stats: bool = True) -> list[str]:
        """Return the nodes that have profiles, sorted."""
        self._refresh(refresh_stats)
        return self._answers.nodes(self._scope("all"))

    @property
    def python_profile_stats(self) -> list[StepPythonProfileStats]:
        """One record for each stats file that was found at the last refresh, by (start time, node)."""
        return stats_files(self._answers.profiles(self._scope("all")), self._answers)

    # -- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back the thread and the processes that read profiles. Results that were looked at stay."""
        self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fetch(self, question: Question, node_id: Nodes, refresh_stats: bool) -> ResultT | None:
        scope = self._scope(node_id)
        self._refresh(refresh_stats)
        selected = self._answers.select(question, scope)
        if selected is None:
            say(NOTHING_IN_INTERVAL)
            return None
        return self._result(selected)

    def _result(self, selected: Selected) -> ResultT:
        files: Any = stats_files(selected.rows(), self._answers)
        return files  # type: ignore[no-any-return]  # each profiler's class gives its own kind

    def _refresh(self, refresh_stats: bool) -> None:
        if refresh_stats:
            self._answers.refresh()

    def _scope(self, node_id: Nodes) -> Scope:
        return Scope(profiler=self.name or None, nodes=a.read_nodes(node_id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._answers}>"


class cProfileAnalysis(PythonProfileAnalysis[cProfileStats]):
    """Profiles of cProfile; results are cProfileStats. See PythonProfileAnalysis for arguments and errors."""

    name = "cprofile"

    def fetch_profile_stats_by_training_phase(
        self, node_id: Nodes = "any", refresh_stats: bool = True
    ) -> dict[ModePair, cProfileStats]:
        """Add up every pair of (start mode, end mode) that has spans."""
        scope = self._scope(node_id)
        self._refresh(refresh_stats)
        return found({pair_of(phase): result_of(phase) for phase in self._answers.training_phases(scope)})

    def fetch_profile_stats_by_job_phase(
        self, node_id: Nodes = "any", refresh_stats: bool = True
    ) -> dict[str, cProfileStats | None]:
        """Add up "initialization" (spans that start in phase START), "finalization" (others that end in phase END) and
        "training_loop" (the rest), None where there is nothing.

        The original tests modes where its documentation speaks of phases, so it takes the span after closing for
        initialization, and of several pairs of modes in one job phase it keeps the last; this is as
        documented.
        """
        scope = self._scope(node_id)
        self._refresh(refresh_stats)
        phases = self._answers.job_phases(scope)
        return found_any({str(phase.job_phase): result_of(phase) if phase.table.spans else None for phase in phases})

    def _result(self, selected: Selected) -> cProfileStats:
        return cProfileStats.of_table(selected.table)


class PyinstrumentAnalysis(PythonProfileAnalysis[PyinstrumentSessions]):
    """Profiles of pyinstrument; results are lists of sessions that can be merged. See PythonProfileAnalysis."""

    name = "pyinstrument"

    def fetch_profile_stats_by_training_phase(
        self, node_id: Nodes = "any", refresh_stats: bool = True
    ) -> dict[ModePair, PyinstrumentTree]:
        """Merge the sessions of every pair of (start mode, end mode) into one call tree each. (The original has this
        for cProfile only.)"""
        scope = self._scope(node_id)
        self._refresh(refresh_stats)
        phases = self._answers.training_phase_trees(scope)
        return found({pair_of(phase): tree_of(phase, tree) for phase, tree in phases})

    def fetch_profile_stats_by_job_phase(
        self, node_id: Nodes = "any", refresh_stats: bool = True
    ) -> dict[str, PyinstrumentTree | None]:
        """Merge the sessions of each job phase into one call tree, None where there is nothing."""
        scope = self._scope(node_id)
        self._refresh(refresh_stats)
        phases = self._answers.job_phase_trees(scope)
        return found_any(
            {str(phase.job_phase): tree_of(phase, tree) if phase.table.spans else None for phase, tree in phases}
        )

    def _result(self, selected: Selected) -> PyinstrumentSessions:
        answers = self._answers
        sessions = [
            PyinstrumentStepStats.of_file(partial(answers.page, row), partial(answers.read, row))
            for row in selected.rows()
        ]
        return PyinstrumentSessions(sessions, PyinstrumentTree(selected.table, selected.tree))


def steps(start_step: Step, end_step: Step | None, more: int) -> dict[str, Any]:
    """Read a range of steps; where the end is left out it is so many more than the start."""
    first = a.read_step("start_step", start_step)
    last = first + more if end_step is None else a.read_step("end_step", end_step)
    a.check_order("start_step", first, "end_step", last)
    return {"start_step": first, "end_step": last}


def borders(mode: PythonProfileModes, start_phase: StepPhase, end_phase: StepPhase) -> dict[str, Any]:
    """Read the mode and the phases at both ends of a range."""
    return {
        "mode": a.read_mode("mode", mode),
        "start_phase": a.read_phase("start_phase", start_phase),
        "end_phase": a.read_phase("end_phase", end_phase),
    }


def pair_of(phase: PhaseStats) -> ModePair:
    """Return the modes of a training phase."""
    if phase.start_mode is None or phase.end_mode is None:
        raise TypeError("not a training phase")
    return phase.start_mode, phase.end_mode


def result_of(phase: PhaseStats) -> cProfileStats:
    """Make a result of a phase."""
    return cProfileStats.of_table(always(phase.table))


def tree_of(phase: PhaseStats, tree: FrameTable) -> PyinstrumentTree:
    """Make a merged result of a phase."""
    return PyinstrumentTree(always(phase.table), always(tree))


def found(results: dict[KeyT, ValueT]) -> dict[KeyT, ValueT]:
    """Return results, or say that there are none."""
    if not results:
        say(NOTHING_IN_INTERVAL)
    return results


def found_any(results: dict[KeyT, ValueT]) -> dict[KeyT, ValueT]:
    """Return results, or say that all of them are empty."""
    if all(result is None for result in results.values()):
        say(NOTHING_IN_INTERVAL)
    return results


def say(sentence: str) -> None:
    """Print to whoever works at the notebook, as the original does."""
    print(sentence)  # noqa: T201
