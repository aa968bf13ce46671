"""What the engine is asked and what it answers: plain records between queries and the API. No behaviour."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from monitor.catalog import SeriesKey
from monitor.profiles.columns import Floats, FunctionName, Ids
from monitor.selection import Question
from monitor.spans import JobPhaseName, PythonProfileModes, Span
from monitor.tables import StatsTable

ANY_NODE = ("any",)
"""In `Scope.nodes`: the node of the earliest span, as the original library chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose spans a question is about; empty means all.

    Attributes:
        profiler: None for all, which only lists of spans and nodes can mean.
    """

    profiler: str | None = "cprofile"
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWish:
    """Which metrics page is wanted.

    Attributes:
        job: only this job's series. daemon: only the daemon's own.
        names: only samples or families with these names; empty for all.
        openmetrics: in OpenMetrics 1.0, not in Prometheus's own format. gzip: compressed.
    """

    job: str | None = None
    daemon: bool = False
    names: frozenset[str] = frozenset()
    openmetrics: bool = False
    gzip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStats:
    """The functions of one phase: of a training phase (two modes) or of a job phase."""

    table: StatsTable
    start_mode: PythonProfileModes | None
    end_mode: PythonProfileModes | None
    job_phase: JobPhaseName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """A merged call tree: path i is `names[path_function[i]]` called from path `path_parent[i]`, -1 for a root.

    Attributes:
        self_seconds: shape (paths,); 0 for paths of other spans.
        spans: how many sessions were merged.
        from_seconds, to_seconds: earliest start and latest end of them, seconds since the epoch; None without spans.
    """

    names: Sequence[FunctionName]
    path_parent: Ids
    path_function: Ids
    self_seconds: Floats
    spans: int
    from_seconds: float | None
    to_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFrames:
    """The merged call tree of one phase: of a training phase (two modes) or of a job phase."""

    tree: FrameTable
    start_mode: PythonProfileModes | None
    end_mode: PythonProfileModes | None
    job_phase: JobPhaseName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One span of one node; `path` is its data file."""

    job: str
    framework: str
    profiler: str
    node: str
    name: str
    span: Span
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job; times in seconds since the epoch."""

    job: str
    spans: int
    nodes: int
    first_seconds: float
    last_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node's spans of one framework and profiler; times in seconds since the epoch."""

    job: str
    framework: str
    profiler: str
    node: str
    spans: int
    first_seconds: float
    last_seconds: float
    last_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """So many events were dropped because the reader was slow."""

    count: int


WatchEvent: TypeAlias = SpanRow | Dropped


class Events(Protocol):
    """A stream of events for one reader."""

    async def __anext__(self) -> WatchEvent:
        """Wait for the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the daemon is, as reasons; "" where there is none.

    Attributes:
        hangs: why it is not alive. waits: why it is not ready.
    """

    hangs: str = ""
    waits: str = ""


class Engine(Protocol):
    """What the API needs to answer."""

    async def stats(self, question: Question, scope: Scope, *, callers: bool) -> StatsTable:
        """Add up the spans that a question selects."""

    async def training_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up each pair of modes that has spans."""

    async def job_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        """Add up the three job phases."""

    async def frames(self, question: Question, scope: Scope) -> FrameTable:
        """Merge sampled call trees."""

    def training_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of each pair of modes that has spans."""

    def job_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        """Merge the sampled trees of the three job phases."""

    async def chosen(self, question: Question, scope: Scope) -> list[SpanRow]:
        """Describe the spans that a question selects, by (start time, node)."""

    async def read_profile(self, series: SeriesKey, name: str) -> bytes | None:
        """Read a span's data file from its source; None where there is no such span."""

    def profiles(self, scope: Scope, *, after: int, limit: int) -> list[SpanRow]:
        """List spans by (start time, node), from a position on."""

    def jobs(self) -> list[JobRow]:
        """List jobs."""

    def nodes(self, scope: Scope) -> list[NodeRow]:
        """List nodes."""

    def refresh(self) -> Awaitable[None]:
        """Take in what is new."""

    def status(self) -> Mapping[str, object]:
        """Return the daemon's state."""

    def health(self) -> Health:
        """Say whether the daemon is alive and ready."""

    def retry(self, jobs: Sequence[str], nodes: Sequence[str]) -> int:
        """Read files again that were set aside, of these jobs and nodes or of all; returns how many."""

    async def metrics_page(self, wish: PageWish) -> bytes | None:
        """Return a metrics page; None while there is none yet."""

    def metrics_jobs(self) -> Mapping[str, bool]:
        """Tell of each job, also one that is watched and has written nothing, whether its series have not ended."""

    def subscribe(self) -> AbstractContextManager[Events]:
        """Listen to new spans."""
