"""What the notebook classes need of whatever answers them: a folder, a bucket or a running daemon. Records and one
protocol, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from monitor.answers import FrameTable, PhaseFrames, PhaseStats, Scope, SpanRow
from monitor.finding import SpanListing
from monitor.selection import Question
from monitor.tables import StatsTable

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The spans that a question selected, one at least; adding them up is put off until somebody looks.

    Attributes:
        table: adds up the functions. tree: merges the sampled call trees.
        rows: describes the spans, by (start time, node).
    """

    table: Callable[[], StatsTable]
    tree: Callable[[], FrameTable]
    rows: Callable[[], list[SpanRow]]


def always(value: ValueT) -> Callable[[], ValueT]:
    """Return what gives a value that is there already."""
    return lambda: value


def with_trees(phases: Sequence[PhaseStats], trees: Sequence[PhaseFrames]) -> list[tuple[PhaseStats, FrameTable]]:
    """Put each phase beside its tree; both are of one moment and in one order."""
    return [(phase, frames.tree) for phase, frames in zip(phases, trees, strict=True)]


class Answering(Protocol):
    """Answers questions about profiles. Every method blocks; none may be called on an event loop's own thread that it
    needs itself."""

    def refresh(self) -> None:
        """Take in what is new."""

    def select(self, question: Question, scope: Scope) -> Selected | None:
        """Find the spans that a question selects; None where there are none."""

    def training_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up each pair of modes that has spans."""

    def job_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up the three job phases."""

    def training_phase_trees(self, scope: Scope) -> list[tuple[PhaseStats, FrameTable]]:
        """Add up and merge the sessions of each pair of modes that has spans."""

    def job_phase_trees(self, scope: Scope) -> list[tuple[PhaseStats, FrameTable]]:
        """Add up and merge the sessions of the three job phases."""

    def profiles(self, scope: Scope) -> list[SpanRow]:
        """List all spans, by (start time, node)."""

    def listing(self, scope: Scope) -> SpanListing:
        """List all spans, by (start time, node), as columns."""

    def version(self) -> object:
        """Return something that differs when a list of spans would; None where that cannot be told."""

    def nodes(self, scope: Scope) -> list[str]:
        """List the nodes that have spans, sorted."""

    def read(self, row: SpanRow) -> bytes:
        """Read a span's data file."""

    def page(self, row: SpanRow) -> str:
        """Return where the picture of a sampled session lies on this machine, having brought it there."""

    def picture(self, path: str) -> str | None:
        """Return where the picture beside a data file lies; None where there is none."""

    def place(self, path: str) -> str:
        """Return where a data file lies for whoever wants to open it."""

    def close(self) -> None:
        """Give back threads and processes; later calls are refused."""
