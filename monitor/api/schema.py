"""The shapes of answers, as msgspec structs: encoded by the server, decoded by the clients, described in OpenAPI."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monitor.answers import FrameTable, JobRow, NodeRow, PhaseFrames, PhaseStats, SpanRow
from monitor.tables import FunctionRow, StatsTable, function_rows
from monitor.trees import present_paths


class StatsAnswer(msgspec.Struct, frozen=True):
    """The functions of the spans that a question selects.

    Attributes:
        spans: how many spans there were. from_, to: earliest start and latest end, seconds since the epoch.
    """

    spans: int
    from_: float | None = msgspec.field(name="from")
    to: float | None
    functions: list[FunctionRow]


class TrainingPhaseAnswer(StatsAnswer, frozen=True):
    """The functions of one training phase."""

    start_mode: str
    end_mode: str


class JobPhaseAnswer(StatsAnswer, frozen=True):
    """The functions of one job phase."""

    job_phase: str


class TrainingPhasesAnswer(msgspec.Struct, frozen=True):
    """All training phases that have spans."""

    phases: list[TrainingPhaseAnswer]


class JobPhasesAnswer(msgspec.Struct, frozen=True):
    """The three job phases."""

    phases: list[JobPhaseAnswer]


class ProfileAnswer(msgspec.Struct, frozen=True):
    """One span, in the words of the original library's list.

    Attributes:
        start_step: -1 is `*`, no step. end_step: null is `*`, infinity in the original.
    """

    job: str
    span: str
    profiler_name: str
    framework: str
    node_id: str
    start_mode: str
    start_step: int
    start_phase: str
    start_time_since_epoch_in_micros: float
    end_mode: str
    end_step: int | None
    end_phase: str
    end_time_since_epoch_in_micros: float
    stats_path: str


class FrameRow(msgspec.Struct, frozen=True):
    """One path of a call tree: a function called from the path at position `parent`, null for a root."""

    parent: int | None
    file: str
    line: int
    name: str
    self_seconds: float


class TreeAnswer(msgspec.Struct, frozen=True):
    """The merged call tree of the sessions that a question selects; parents stand before their children."""

    spans: int
    from_: float | None = msgspec.field(name="from")
    to: float | None
    frames: list[FrameRow]


class TrainingPhaseTree(TreeAnswer, frozen=True):
    """The merged call tree of one training phase."""

    start_mode: str
    end_mode: str


class JobPhaseTree(TreeAnswer, frozen=True):
    """The merged call tree of one job phase."""

    job_phase: str


class TrainingPhaseTrees(msgspec.Struct, frozen=True):
    """The merged call trees of all training phases that have sessions."""

    phases: list[TrainingPhaseTree]


class JobPhaseTrees(msgspec.Struct, frozen=True):
    """The merged call trees of the three job phases."""

    phases: list[JobPhaseTree]


class ProfilesAnswer(msgspec.Struct, frozen=True):
    """Spans by (start time, node); `next` is what to pass as `after` for the next page, null at the end."""

    profiles: list[ProfileAnswer]
    next: int | None


class NodeAnswer(msgspec.Struct, frozen=True):
    """One node's spans of one framework and profiler; times in seconds since the epoch."""

    job: str
    framework: str
    profiler: str
    node: str
    spans: int
    from_: float = msgspec.field(name="from")
    to: float
    last_step: int | None


class NodesAnswer(msgspec.Struct, frozen=True):
    """Who wrote spans."""

    nodes: list[NodeAnswer]


class JobAnswer(msgspec.Struct, frozen=True):
    """One job; times in seconds since the epoch."""

    job: str
    spans: int
    nodes: int
    from_: float = msgspec.field(name="from")
    to: float


class JobsAnswer(msgspec.Struct, frozen=True):
    """The jobs that have spans."""

    jobs: list[JobAnswer]


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong; `parameter` is the one at fault, or null."""

    code: str
    message: str
    parameter: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The one shape of errors."""

    error: ErrorBody


class DroppedEvent(msgspec.Struct, frozen=True):
    """In `watch`: so many events were dropped because the reader was slow."""

    count: int


def stats_answer(table: StatsTable) -> StatsAnswer:
    """Show a table."""
    return StatsAnswer(table.spans, table.from_seconds, table.to_seconds, function_rows(table))


def training_phase_answer(stats: PhaseStats) -> TrainingPhaseAnswer:
    """Show a training phase."""
    if stats.start_mode is None or stats.end_mode is None:
        raise TypeError("not a training phase")
    table = stats.table
    return TrainingPhaseAnswer(
        table.spans,
        table.from_seconds,
        table.to_seconds,
        function_rows(table),
        stats.start_mode.word,
        stats.end_mode.word,
    )


def job_phase_answer(stats: PhaseStats) -> JobPhaseAnswer:
    """Show a job phase."""
    if stats.job_phase is None:
        raise TypeError("not a job phase")
    table = stats.table
    return JobPhaseAnswer(table.spans, table.from_seconds, table.to_seconds, function_rows(table), stats.job_phase)


def frame_rows(tree: FrameTable) -> list[FrameRow]:
    """Show the paths of a tree that hold time, numbered anew."""
    places: dict[int, int] = {}
    rows: list[FrameRow] = []
    for path in present_paths(tree):
        places[path] = len(rows)
        name = tree.names[int(tree.path_function[path])]
        rows.append(FrameRow(places.get(int(tree.path_parent[path])), *name, float(tree.self_seconds[path])))
    return rows


def tree_answer(tree: FrameTable) -> TreeAnswer:
    """Show a call tree."""
    return TreeAnswer(tree.spans, tree.from_seconds, tree.to_seconds, frame_rows(tree))


def phase_trees(phases: Sequence[PhaseFrames]) -> TrainingPhaseTrees | JobPhaseTrees:
    """Show the call trees of training phases, or of job phases."""
    by_mode: list[TrainingPhaseTree] = []
    by_job: list[JobPhaseTree] = []
    for phase in phases:
        tree = phase.tree
        shown = (tree.spans, tree.from_seconds, tree.to_seconds, frame_rows(tree))
        if phase.start_mode is not None and phase.end_mode is not None:
            by_mode.append(TrainingPhaseTree(*shown, phase.start_mode.word, phase.end_mode.word))
        elif phase.job_phase is not None:
            by_job.append(JobPhaseTree(*shown, phase.job_phase))
    return JobPhaseTrees(by_job) if by_job else TrainingPhaseTrees(by_mode)


def profile_answer(row: SpanRow) -> ProfileAnswer:
    """Show a span."""
    start, end = row.span.start, row.span.end
    return ProfileAnswer(
        job=row.job,
        span=row.name,
        profiler_name=row.profiler,
        framework=row.framework,
        node_id=row.node,
        start_mode=start.mode.word,
        start_step=row.span.start_step,
        start_phase=start.phase.value,
        start_time_since_epoch_in_micros=start.time_us,
        end_mode=end.mode.word,
        end_step=end.step,
        end_phase=end.phase.value,
        end_time_since_epoch_in_micros=end.time_us,
        stats_path=row.path,
    )


def node_answer(row: NodeRow) -> NodeAnswer:
    """Show a node."""
    return NodeAnswer(
        job=row.job,
        framework=row.framework,
        profiler=row.profiler,
        node=row.node,
        spans=row.spans,
        from_=row.first_seconds,
        to=row.last_seconds,
        last_step=row.last_step,
    )


def job_answer(row: JobRow) -> JobAnswer:
    """Show a job."""
    return JobAnswer(job=row.job, spans=row.spans, nodes=row.nodes, from_=row.first_seconds, to=row.last_seconds)
