"""Answers from a running daemon, over its query socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from monitor.analysis.answering import Selected, always
from monitor.analysis.folder import picture_beside
from monitor.analysis.skipping import SkippedFileWarning, warn_caller
from monitor.analysis.wire import request_of, row_of, table_of_answer, tree_of_answer
from monitor.answers import ANY_NODE, FrameTable, PhaseStats, Scope, SpanRow
from monitor.api.schema import (
    JobPhaseTrees,
    NodesAnswer,
    ProfilesAnswer,
    StatsAnswer,
    TrainingPhaseTrees,
    TreeAnswer,
)
from monitor.catalog import SeriesKey
from monitor.client import Client, Word
from monitor.errors import ArgumentError, MonitorError, QueryError, SourceUnavailable
from monitor.finding import SpanListing
from monitor.layout import HTML_FILE
from monitor.rows import columns_of
from monitor.selection import (
    Question,
)
from monitor.spans import JOB_PHASES, PythonProfileModes
from monitor.tables import StatsTable

StructT = TypeVar("StructT", bound=msgspec.Struct)

PAGE_SPANS = 10_000
MOST_TRIES = 5
TIMEOUT_SECONDS = 600.0
"""A first question after the daemon's start may have to wait until it has caught up."""


class DaemonAnswers:
    """Answers from the daemon behind a socket.

    Args:
        job: which job; may be left out where the daemon has one.

    Raises:
        SourceUnavailable: nobody listens there. ArgumentError: the daemon has no such job, or several.
    """

    def __init__(self, socket: str | Path, job: str | None) -> None:
        self._socket = Path(socket).expanduser()
        self._client = Client(self._socket, timeout_seconds=TIMEOUT_SECONDS)
        self._wanted = job
        self._job = ""
        self._closed = False
        self._told: set[tuple[str, str]] = set()
        self._choose_job()

    def refresh(self) -> None:
        """Have the daemon poll its sources and wait until what they found is stored; warn of what it has set aside."""
        self._choose_job(fresh=True)
        for file in self._client.status()["set_aside"]:
            key = (file["path"], file["reason"])
            if file.get("job", self._job) == self._job and key not in self._told:
                self._told.add(key)
                warn_caller(f"skipped {file['path']}: {file['reason']}", SkippedFileWarning)

    def select(self, question: Question, scope: Scope) -> Selected | None:
        """Find the spans that a question selects. All is asked at once: a daemon's answers move on."""
        if not self._job:
            return None
        if scope.profiler is None:
            return self._select_files(question, scope)
        path, words = request_of(question)
        words |= self._words(scope)
        if scope.profiler == "pyinstrument":
            return self._select_sessions(path, words)
        answer = self._ask(StatsAnswer, path, callers=True, **words)
        if answer is None or not answer.spans:
            return None
        table = table_of_answer(answer, counts_calls=True)
        return Selected(table=always(table), tree=no_tree, rows=partial(self._rows, path, words))

    def _select_sessions(self, path: str, words: dict[str, Word]) -> Selected | None:
        """Ask for sessions, their functions and their tree; again where new ones came in between."""
        rows = self._rows(path, words)
        for _ in range(MOST_TRIES):
            answer = self._ask(StatsAnswer, path, callers=True, **words)
            tree = self._ask(TreeAnswer, path, format="tree", **words)
            before, rows = rows, self._rows(path, words)
            if answer is None or tree is None or not answer.spans:
                return None
            if answer.spans == tree.spans and rows == before:
                table = table_of_answer(answer, counts_calls=False)
                return Selected(table=always(table), tree=always(tree_of_answer(tree)), rows=always(rows))
        raise SourceUnavailable(f"the daemon on {self._socket} stored new profiles between all tries; try again")

    def training_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up each pair of modes that has spans."""
        answer = self._phases(lambda words: self._client.training_phases(callers=True, **words), scope)
        counts = scope.profiler != "pyinstrument"
        return [
            PhaseStats(
                table=table_of_answer(phase, counts_calls=counts),
                start_mode=PythonProfileModes.from_word(phase.start_mode),
                end_mode=PythonProfileModes.from_word(phase.end_mode),
                job_phase=None,
            )
            for phase in (answer.phases if answer is not None else [])
        ]

    def job_phases(self, scope: Scope) -> list[PhaseStats]:
        """Add up the three job phases."""
        answer = self._phases(lambda words: self._client.job_phases(callers=True, **words), scope)
        counts = scope.profiler != "pyinstrument"
        phases = answer.phases if answer is not None else [StatsAnswer(0, None, None, [])] * len(JOB_PHASES)
        return [
            PhaseStats(
                table=table_of_answer(phase, counts_calls=counts), start_mode=None, end_mode=None, job_phase=name
            )
            for phase, name in zip(phases, JOB_PHASES, strict=True)
        ]

    def training_phase_trees(self, scope: Scope) -> list[tuple[PhaseStats, FrameTable]]:
        """Add up and merge the sessions of each pair of modes that has spans."""
        ask = partial(self._ask, TrainingPhaseTrees, "/v1/stats/training-phases", format="tree")
        return self._of_one_moment(lambda: (self.training_phases(scope), phases_of(ask(**self._words(scope)))))

    def job_phase_trees(self, scope: Scope) -> list[tuple[PhaseStats, FrameTable]]:
        """Add up and merge the sessions of the three job phases."""
        ask = partial(self._ask, JobPhaseTrees, "/v1/stats/job-phases", format="tree")
        nothing = [TreeAnswer(0, None, None, [])] * len(JOB_PHASES)
        return self._of_one_moment(lambda: (self.job_phases(scope), phases_of(ask(**self._words(scope))) or nothing))

    def _of_one_moment(
        self, ask: Callable[[], tuple[list[PhaseStats], Sequence[TreeAnswer]]]
    ) -> list[tuple[PhaseStats, FrameTable]]:
        """Ask for phases and for their trees until both are of the same spans."""
        for _ in range(MOST_TRIES):
            phases, trees = ask()
            if [phase.table.spans for phase in phases] == [tree.spans for tree in trees]:
                return [(phase, tree_of_answer(tree)) for phase, tree in zip(phases, trees, strict=True)]
        raise SourceUnavailable(f"the daemon on {self._socket} stored new profiles between all tries; try again")

    def profiles(self, scope: Scope) -> list[SpanRow]:
        """List all spans, by (start time, node)."""
        rows: list[SpanRow] = []
        after: int | None = 0
        while after is not None and self._job:
            page = self._ask(ProfilesAnswer, "/v1/profiles", after=after, limit=PAGE_SPANS, **self._words(scope))
            if page is None:
                break
            rows.extend(row_of(profile) for profile in page.profiles)
            after = page.next
        return rows

    def listing(self, scope: Scope) -> SpanListing:
        """List all spans, by (start time, node), as columns."""
        rows = self.profiles(scope)
        keys: dict[SeriesKey, int] = {}
        series = [
            keys.setdefault(SeriesKey(job=r.job, framework=r.framework, profiler=r.profiler, node=r.node), len(keys))
            for r in rows
        ]
        return SpanListing(
            keys=list(keys),
            series=np.asarray(series, dtype=np.int32),
            said=columns_of([row.span for row in rows]),
            paths=[row.path for row in rows],
        )

    def version(self) -> object:
        """Return nothing: the daemon's lists change at any time."""
        return None

    def nodes(self, scope: Scope) -> list[str]:
        """List the nodes that have spans, sorted."""
        answer = self._ask(NodesAnswer, "/v1/nodes", **self._words(scope)) if self._job else None
        return [] if answer is None else sorted({row.node for row in answer.nodes})

    def read(self, row: SpanRow) -> bytes:
        """Read a span's data file through the daemon."""
        self._refuse_closed()
        words = {"job": row.job, "framework": row.framework, "profiler": row.profiler, "node": row.node}
        return self._client.raw("/v1/profile", span=row.name, **words)[1]

    def page(self, row: SpanRow) -> str:
        """Return where the picture of a session lies, on the daemon's machine: beside its data."""
        return str(Path(row.path).with_name(HTML_FILE))

    def picture(self, path: str) -> str | None:
        """Return the picture beside a data file; None where this machine has none."""
        return picture_beside(path)

    def place(self, path: str) -> str:
        """Return a data file's path as the daemon names it."""
        return path

    def close(self) -> None:
        """Refuse later calls."""
        self._closed = True

    def __repr__(self) -> str:
        return f"{self._socket} (job {self._job or 'none yet'})"

    # -- inside ----------------------------------------------------------------------------------------------------

    def _choose_job(self, *, fresh: bool = False) -> None:
        """Look which jobs there are, and take the wanted or the only one."""
        self._refuse_closed()
        try:
            jobs = [job.job for job in self._client.jobs(fresh=fresh).jobs]
        except SourceUnavailable as error:
            raise SourceUnavailable(f"socket={str(self._socket)!r}: {error}") from error
        if self._job or not jobs:
            return
        if self._wanted is None and len(jobs) > 1:
            raise ArgumentError("job", None, f"the daemon has several jobs; give one of {', '.join(jobs)}")
        if self._wanted is not None and self._wanted not in jobs:
            watched = sorted({*jobs, *(source["job"] for source in self._client.status()["sources"])})
            if self._wanted not in watched:
                raise ArgumentError("job", self._wanted, f"the daemon has no such job; it has {', '.join(watched)}")
            return  # it has no profiles yet
        self._job = self._wanted or jobs[0]

    def _select_files(self, question: Question, scope: Scope) -> Selected | None:
        """Select spans of both profilers, which have no common sums."""
        nodes = scope.nodes
        if nodes == ANY_NODE:
            first = self._ask(ProfilesAnswer, "/v1/profiles", limit=1, job=self._job)
            nodes = tuple(profile.node_id for profile in first.profiles) if first is not None else ()
        path, words = request_of(question)
        rows: list[SpanRow] = []
        for profiler in ("cprofile", "pyinstrument"):
            rows += self._rows(path, words | self._words(Scope(profiler=profiler, nodes=nodes)))
        rows.sort(key=lambda row: (row.span.start.time_us, row.node))
        return Selected(table=no_table, tree=no_tree, rows=always(rows)) if rows else None

    def _rows(self, path: str, words: dict[str, Word]) -> list[SpanRow]:
        answer = self._ask(ProfilesAnswer, path, format="profiles", **words)
        return [] if answer is None else [row_of(profile) for profile in answer.profiles]

    def _phases(self, ask: Callable[[dict[str, Word]], StructT], scope: Scope) -> StructT | None:
        self._refuse_closed()
        if not self._job:
            return None
        try:
            return ask(self._words(scope))
        except QueryError as error:
            raise_unless_unknown(error)
            return None

    def _ask(self, kind: type[StructT], path: str, **words: Word) -> StructT | None:
        """Ask, and decode; None where the node or the job has no profiles."""
        self._refuse_closed()
        try:
            return msgspec.json.decode(self._client.raw(path, **words)[1], type=kind)
        except QueryError as error:
            raise_unless_unknown(error)
            return None

    def _words(self, scope: Scope) -> dict[str, Word]:
        """Write a scope. Of several nodes those that have no profiles are left out, which the daemon would refuse."""
        nodes = scope.nodes
        if len(nodes) > 1:
            answer = self._ask(NodesAnswer, "/v1/nodes", job=self._job)
            known = {row.node for row in answer.nodes} if answer is not None else set()
            nodes = tuple(node for node in nodes if node in known) or nodes[:1]
        return {"job": self._job or None, "profiler": scope.profiler, "node": nodes}

    def _refuse_closed(self) -> None:
        if self._closed:
            raise MonitorError("this analysis was closed: make a new one")


def phases_of(answer: TrainingPhaseTrees | JobPhaseTrees | None) -> Sequence[TreeAnswer]:
    """Return the trees of an answer; none where nothing was found."""
    return [] if answer is None else answer.phases


def raise_unless_unknown(error: QueryError) -> None:
    """Take the refusal of an unknown node for an empty answer, as the original does."""
    if error.code != "not_found":
        raise error


def no_table() -> StatsTable:
    """Refuse to add up spans of different profilers."""
    raise MonitorError("counted calls and samples cannot be added up: use cProfileAnalysis or PyinstrumentAnalysis")


def no_tree() -> FrameTable:
    """Refuse to draw a tree of counted calls."""
    raise MonitorError("cProfile records no call trees: use PyinstrumentAnalysis")
