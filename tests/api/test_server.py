"""The server on a real socket, with an engine of literal answers: routes, errors in one shape, load, TCP, its end.

The other tests of the API and of the clients use this engine and this server too.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import marshal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import numpy as np
import pytest
from anyio.abc import ByteStream

from monitor.answers import Engine, FrameTable, JobRow, NodeRow, PageWish, PhaseFrames, PhaseStats, Scope, SpanRow
from monitor.api import server as server_module
from monitor.api.scrape import PLAIN_TYPE
from monitor.api.server import Server, open_server
from monitor.catalog import SeriesKey
from monitor.errors import ConfigError, ReadError, SourceUnavailable, StoreError
from monitor.profiles.columns import FunctionName
from monitor.selection import BetweenModes, ByStep, ByStepDocumented, ByTime, PostHookClose, PreStepZero, Question
from monitor.spans import JOB_PHASES, PythonProfileModes, StepPhase, parse_span_name
from monitor.tables import CallerTable, Measures, StatsTable
from monitor.watchers import Subscription, Watchers

DEADLINE_SECONDS = 10.0
STOP_SECONDS = 3.0

TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
STEP: FunctionName = ("/app/train.py", 12, "step")
FORWARD: FunctionName = ("/app/model.py", 7, "forward")
SPAN_NAME = "train-3-stepstart-1000000.5_train-3-stepend-2000000.0"
EARLY_NAME = "prestepzero-*-start-500000.0_train-0-stepstart-900000.0"

Reply = tuple[int, dict[str, str], bytes]


# -- an engine with literal answers ------------------------------------------------------------------------------------


def stats_table(*, callers: bool, counts_calls: bool = True) -> StatsTable:
    """step, called twice, calls forward; forward calls itself."""
    edges = CallerTable(
        function=np.array([1, 1], np.int32),
        caller=np.array([0, 1], np.int32),
        measures=Measures(
            calls=np.array([2, 4], np.int64),
            primitive_calls=np.array([2, 0], np.int64),
            self_seconds=np.array([1.0, 0.5]),
            cumulative_seconds=np.array([1.5, 0.5]),
        ),
    )
    return StatsTable(
        spans=2,
        from_seconds=1.0000005,
        to_seconds=2.0,
        counts_calls=counts_calls,
        names=[STEP, FORWARD],
        function=np.array([0, 1], np.int32),
        measures=Measures(
            calls=np.array([2, 6], np.int64),
            primitive_calls=np.array([2, 2], np.int64),
            self_seconds=np.array([0.25, 1.5]),
            cumulative_seconds=np.array([1.75, 1.5]),
        ),
        callers=edges if callers else None,
    )


def frame_table() -> FrameTable:
    """Two paths that hold time, and one of other spans between them."""
    return FrameTable(
        names=[STEP, FORWARD],
        path_parent=np.array([-1, -1, 0], np.int32),
        path_function=np.array([0, 1, 1], np.int32),
        self_seconds=np.array([0.25, 0.0, 1.5]),
        spans=2,
        from_seconds=1.0000005,
        to_seconds=2.0,
    )


def span_row(name: str = SPAN_NAME, **other: str) -> SpanRow:
    """A span; keywords say what is unusual about it."""
    words = {"job": "training", "framework": "pytorch", "profiler": "cprofile", "node": "0-a"} | other
    return SpanRow(**words, name=name, span=parse_span_name(name), path=f"/base/{name}/python_stats")


NODES = [
    NodeRow(
        job="training",
        framework="pytorch",
        profiler="cprofile",
        node="0-a",
        spans=2,
        first_seconds=0.5,
        last_seconds=2.0,
        last_step=3,
    ),
    NodeRow(
        job="other",
        framework="tensorflow",
        profiler="pyinstrument",
        node="1-b",
        spans=1,
        first_seconds=0.5,
        last_seconds=0.75,
        last_step=None,
    ),
]


class FakeEngine:
    """Literal answers; remembers what it was asked.

    Attributes:
        asked: each question with its scope and whether callers were wanted.
        held: set it to an event, and questions wait for it.
        failure: raised by the next questions.
        left: set when a watcher has gone.
    """

    def __init__(self, *, most_waiting: int = 100) -> None:
        self.asked: list[tuple[object, Scope, bool]] = []
        self.calls: list[str] = []
        self.held: anyio.Event | None = None
        self.failure: Exception | None = None
        self.cancelled = anyio.Event()
        self.page: bytes | None = b"# a page\n"
        self.wishes: list[PageWish] = []
        self.watchers = Watchers(most_waiting=most_waiting)
        self.joined = anyio.Event()
        self.left = anyio.Event()

    async def stats(self, question: Question, scope: Scope, *, callers: bool) -> StatsTable:
        await self._note(question, scope, callers)
        return stats_table(callers=callers, counts_calls=scope.profiler != "pyinstrument")

    async def training_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        await self._note("training phases", scope, callers)
        table = stats_table(callers=callers, counts_calls=scope.profiler != "pyinstrument")
        pairs = [(TRAIN, TRAIN), (TRAIN, EVAL)]
        return [PhaseStats(table=table, start_mode=start, end_mode=end, job_phase=None) for start, end in pairs]

    async def job_phases(self, scope: Scope, *, callers: bool) -> list[PhaseStats]:
        await self._note("job phases", scope, callers)
        table = stats_table(callers=callers, counts_calls=scope.profiler != "pyinstrument")
        return [PhaseStats(table=table, start_mode=None, end_mode=None, job_phase=phase) for phase in JOB_PHASES]

    async def frames(self, question: Question, scope: Scope) -> FrameTable:
        await self._note(question, scope, False)
        return frame_table()

    def training_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        self.asked.append(("training phase frames", scope, False))
        pairs = [(TRAIN, TRAIN), (TRAIN, EVAL)]
        return [PhaseFrames(tree=frame_table(), start_mode=s, end_mode=e, job_phase=None) for s, e in pairs]

    def job_phase_frames(self, scope: Scope) -> list[PhaseFrames]:
        self.asked.append(("job phase frames", scope, False))
        return [PhaseFrames(tree=frame_table(), start_mode=None, end_mode=None, job_phase=p) for p in JOB_PHASES]

    async def chosen(self, question: Question, scope: Scope) -> list[SpanRow]:
        self.asked.append((question, scope, False))
        return [span_row(EARLY_NAME), span_row()]

    async def read_profile(self, series: SeriesKey, name: str) -> bytes | None:
        self.calls.append(f"read {series.job}/{series.framework}/{series.profiler}/{series.node}/{name}")
        if isinstance(self.failure, ReadError):
            raise self.failure
        return b"a profile" if name == SPAN_NAME else None

    def profiles(self, scope: Scope, *, after: int, limit: int) -> list[SpanRow]:
        self.asked.append(("profiles", scope, False))
        return [span_row(EARLY_NAME), span_row(), span_row(node="1-a")][after : after + limit]

    def jobs(self) -> list[JobRow]:
        return [JobRow(job="training", spans=2, nodes=1, first_seconds=0.5, last_seconds=2.0)]

    def nodes(self, scope: Scope) -> list[NodeRow]:
        self.calls.append("nodes")
        return [row for row in NODES if scope.profiler in (None, row.profiler)]

    async def refresh(self) -> None:
        self.calls.append("refresh")

    def status(self) -> Mapping[str, object]:
        return {"profiles": 2, "state": "ready"}

    async def metrics_page(self, wish: PageWish) -> bytes | None:
        self.wishes.append(wish)
        return self.page

    def metrics_jobs(self) -> Mapping[str, bool]:
        return {"é/ü": True, "over": False, "training": True}

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        try:
            with self.watchers.subscribe() as events:
                self.joined.set()
                yield events
        finally:
            self.left.set()

    async def _note(self, question: object, scope: Scope, callers: bool) -> None:
        self.asked.append((question, scope, callers))
        if self.failure is not None:
            raise self.failure
        if self.held is not None:
            try:
                await self.held.wait()
            except anyio.get_cancelled_exc_class():
                self.cancelled.set()
                raise


@asynccontextmanager
async def serving(
    engine: Engine,
    folder: Path,
    *,
    listen: str = "",
    listen_api: bool = False,
    max_concurrent: int = 4,
    timeout_seconds: float = DEADLINE_SECONDS,
    socket_mode: int = 0o660,
    **more: Any,
) -> AsyncIterator[Server]:
    """Serve on FOLDER/s.sock."""
    async with open_server(
        engine,
        socket=folder / "s.sock",
        socket_mode=socket_mode,
        listen=listen,
        listen_api=listen_api,
        max_concurrent=max_concurrent,
        timeout_seconds=timeout_seconds,
        **more,
    ) as server:
        yield server


@asynccontextmanager
async def serving_for_a_fixture(engine: Engine, folder: Path) -> AsyncIterator[Server]:
    """Serve from a task of its own: the end of a fixture runs in another task than its beginning."""
    running: list[Server] = []
    ready, over = anyio.Event(), anyio.Event()

    async def serve() -> None:
        async with serving(engine, folder) as server:
            running.append(server)
            ready.set()
            await over.wait()

    task = asyncio.get_running_loop().create_task(serve())
    with anyio.fail_after(DEADLINE_SECONDS):
        await ready.wait()
    try:
        yield running[0]
    finally:
        over.set()
        await task


async def connect(where: Server | str) -> ByteStream:
    """Connect to the socket of a server, or to an address."""
    if isinstance(where, Server):
        return await anyio.connect_unix(where.socket)
    host, _, port = where.rpartition(":")
    return await anyio.connect_tcp(host, int(port))


async def ask(
    where: Server | str, target: str | bytes, method: str = "GET", headers: Sequence[str] = ("Host: x",)
) -> Reply:
    """Send one request exactly as written; returns status, headers (lower case) and body."""
    lines = "".join(f"{line}\r\n" for line in [*headers, "Connection: close", ""]).encode()
    raw = target.encode() if isinstance(target, str) else target
    received = b""
    with anyio.fail_after(DEADLINE_SECONDS):
        async with await connect(where) as stream:
            await stream.send(method.encode() + b" " + raw + b" HTTP/1.1\r\n" + lines)
            try:
                while True:
                    received += await stream.receive()
            except anyio.EndOfStream:
                pass
    return parsed(received)


def parsed(received: bytes) -> Reply:
    """Take a response apart."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = [line.partition(": ") for line in lines]
    return int(first.split()[1]), {name.lower(): value for name, _, value in fields}, body


def error_of(reply: Reply) -> tuple[int, str, str, str | None]:
    """Return status, code, message and parameter of an error, which has exactly one shape."""
    status, headers, body = reply
    assert headers["content-type"].startswith("application/json"), body
    content = json.loads(body)
    assert content.keys() == {"error"}
    assert content["error"].keys() == {"code", "message", "parameter"}
    error = content["error"]
    return status, error["code"], error["message"], error["parameter"]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def server(engine: FakeEngine, short_tmp_path: Path) -> AsyncIterator[Server]:
    async with serving_for_a_fixture(engine, short_tmp_path) as running:
        yield running


# -- answers -----------------------------------------------------------------------------------------------------------

FUNCTIONS = [
    {
        "file": "/app/model.py",
        "line": 7,
        "name": "forward",
        "primitive_calls": 2,
        "calls": 6,
        "self_seconds": 1.5,
        "cumulative_seconds": 1.5,
    },
    {
        "file": "/app/train.py",
        "line": 12,
        "name": "step",
        "primitive_calls": 2,
        "calls": 2,
        "self_seconds": 0.25,
        "cumulative_seconds": 1.75,
    },
]
STATS = {"spans": 2, "from": 1.0000005, "to": 2.0, "functions": FUNCTIONS}
PROFILE = {
    "job": "training",
    "span": SPAN_NAME,
    "profiler_name": "cprofile",
    "framework": "pytorch",
    "node_id": "0-a",
    "start_mode": "train",
    "start_step": 3,
    "start_phase": "stepstart",
    "start_time_since_epoch_in_micros": 1000000.5,
    "end_mode": "train",
    "end_step": 3,
    "end_phase": "stepend",
    "end_time_since_epoch_in_micros": 2000000.0,
    "stats_path": f"/base/{SPAN_NAME}/python_stats",
}
EARLY = PROFILE | {
    "span": EARLY_NAME,
    "start_mode": "prestepzero",
    "start_step": -1,
    "start_phase": "start",
    "start_time_since_epoch_in_micros": 500000.0,
    "end_step": 0,
    "end_phase": "stepstart",
    "end_time_since_epoch_in_micros": 900000.0,
    "stats_path": f"/base/{EARLY_NAME}/python_stats",
}
NODE = {
    "job": "training",
    "framework": "pytorch",
    "profiler": "cprofile",
    "node": "0-a",
    "spans": 2,
    "from": 0.5,
    "to": 2.0,
    "last_step": 3,
}
ANSWERS: list[tuple[str, object]] = [
    ("/v1/status", {"profiles": 2, "state": "ready"}),
    ("/v1/jobs", {"jobs": [{"job": "training", "spans": 2, "nodes": 1, "from": 0.5, "to": 2.0}]}),
    ("/v1/nodes?profiler=cprofile", {"nodes": [NODE]}),
    ("/v1/profiles?limit=2", {"profiles": [EARLY, PROFILE], "next": 2}),
    ("/v1/profiles?after=1", {"profiles": [PROFILE, PROFILE | {"node_id": "1-a"}], "next": None}),
    ("/v1/profiles?after=3", {"profiles": [], "next": None}),
    ("/v1/stats/step?start=3", STATS),
    ("/v1/stats/step?start=3&sort=cumulative", STATS | {"functions": FUNCTIONS[::-1]}),
    ("/v1/stats/step?start=3&limit=1", STATS | {"functions": FUNCTIONS[:1]}),
    ("/v1/stats/step?start=3&limit=0", STATS | {"functions": []}),
    ("/v1/stats/time?start=1&end=2", STATS),
    ("/v1/stats/modes?start_mode=train&end_mode=train", STATS),
    ("/v1/stats/pre-step-zero", STATS),
    ("/v1/stats/post-hook-close", STATS),
    (
        "/v1/stats/training-phases",
        {
            "phases": [
                STATS | {"start_mode": "train", "end_mode": "train"},
                STATS | {"start_mode": "train", "end_mode": "eval"},
            ]
        },
    ),
    ("/v1/stats/training-phases?end_mode=eval", {"phases": [STATS | {"start_mode": "train", "end_mode": "eval"}]}),
    ("/v1/stats/training-phases?start_mode=eval", {"phases": []}),
    ("/v1/stats/job-phases", {"phases": [STATS | {"job_phase": phase} for phase in JOB_PHASES]}),
    ("/v1/stats/job-phases?job_phase=finalization", {"phases": [STATS | {"job_phase": "finalization"}]}),
]


@pytest.mark.parametrize(("target", "answer"), ANSWERS)
async def test_every_route_answers_as_documented(server: Server, target: str, answer: object) -> None:
    status, headers, body = await ask(server, target)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == answer


ALL = Scope()
ASKED: list[tuple[str, tuple[object, Scope, bool]]] = [
    ("/v1/stats/step?start=3", (ByStep(start_step=3), ALL, False)),
    (
        "/v1/stats/step?start=3&end=9&mode=eval&start_phase=forwardpassend&callers=true&job=training&node=0-a",
        (
            ByStep(start_step=3, end_step=9, mode=EVAL, start_phase=StepPhase.FORWARD_PASS_END),
            Scope(jobs=("training",), nodes=("0-a",)),
            True,
        ),
    ),
    ("/v1/stats/step?start=3&end=9&rule=documented", (ByStepDocumented(start_step=3, end_step=9), ALL, False)),
    ("/v1/stats/time?start=1.5&end=2e3&overlap=any", (ByTime(start=1.5, end=2000.0, overlap="any"), ALL, False)),
    (
        "/v1/stats/modes?start_mode=train&end_mode=eval&node=any",
        (BetweenModes(start_mode=TRAIN, end_mode=EVAL), Scope(nodes=("any",)), False),
    ),
    (
        "/v1/stats/pre-step-zero?profiler=pyinstrument&framework=tensorflow",
        (PreStepZero(), Scope(profiler="pyinstrument", frameworks=("tensorflow",)), False),
    ),
    ("/v1/stats/post-hook-close?node=0-a&node=1-b", (PostHookClose(), Scope(nodes=("0-a", "1-b")), False)),
    ("/v1/stats/training-phases?callers=1", ("training phases", ALL, True)),
    ("/v1/stats/job-phases", ("job phases", ALL, False)),
    ("/v1/profiles", ("profiles", Scope(profiler=None), False)),
]


@pytest.mark.parametrize(("target", "asked"), ASKED)
async def test_every_route_asks_what_its_url_says(
    engine: FakeEngine, server: Server, target: str, asked: tuple[object, Scope, bool]
) -> None:
    status, _, body = await ask(server, target)
    assert status == 200, body
    assert engine.asked == [asked]


async def test_callers_have_the_caller_s_name_and_the_function_s_part(server: Server) -> None:
    _, _, body = await ask(server, "/v1/stats/step?start=3&callers=true")
    forward, step = json.loads(body)["functions"]
    assert step["callers"] == []
    assert [(row["name"], row["calls"], row["primitive_calls"], row["self_seconds"]) for row in forward["callers"]] == [
        ("step", 2, 2, 1.0),
        ("forward", 4, 0, 0.5),
    ]


async def test_a_sampler_s_calls_are_null(server: Server) -> None:
    _, _, body = await ask(server, "/v1/stats/step?start=3&profiler=pyinstrument")
    assert {(row["calls"], row["primitive_calls"]) for row in json.loads(body)["functions"]} == {(None, None)}


@pytest.mark.parametrize(
    ("target", "kind", "name"),
    [
        ("/v1/stats/step?start=3&format=csv", "text/csv; charset=utf-8", "step.csv"),
        ("/v1/stats/job-phases?format=csv", "text/csv; charset=utf-8", "job-phases.csv"),
        ("/v1/stats/step?start=3&format=pstats", "application/octet-stream", "step.pstats"),
        ("/v1/stats/step?start=3&format=folded&profiler=pyinstrument", "text/plain; charset=utf-8", "step.folded"),
    ],
)
async def test_other_formats_are_files_with_a_name(server: Server, target: str, kind: str, name: str) -> None:
    status, headers, body = await ask(server, target)
    assert (status, headers["content-type"]) == (200, kind)
    assert headers["content-disposition"] == f'attachment; filename="{name}"'
    assert body


async def test_csv_names_the_phase_of_each_row(server: Server) -> None:
    _, _, body = await ask(server, "/v1/stats/training-phases?format=csv&limit=1")
    rows = list(csv.reader(io.StringIO(body.decode())))
    assert [row[:5] for row in rows] == [
        ["start_mode", "end_mode", "file", "line", "name"],
        ["train", "train", "/app/model.py", "7", "forward"],
        ["train", "eval", "/app/model.py", "7", "forward"],
    ]


@pytest.mark.parametrize(
    "target",
    [
        "/v1/stats/step?start=3&format=pstats",
        "/v1/stats/job-phases?format=pstats&job_phase=training_loop",
        "/v1/stats/training-phases?format=pstats&start_mode=train&end_mode=eval",
    ],
)
async def test_pstats_holds_one_phase_with_its_callers(server: Server, target: str) -> None:
    _, _, body = await ask(server, target)
    assert marshal.loads(body) == {
        STEP: (2, 2, 0.25, 1.75, {}),
        FORWARD: (2, 6, 1.5, 1.5, {STEP: (2, 2, 1.0, 1.5), FORWARD: (4, 0, 0.5, 0.5)}),
    }


async def test_folded_is_one_line_a_stack(server: Server) -> None:
    _, _, body = await ask(server, "/v1/stats/step?start=3&format=folded&profiler=pyinstrument")
    assert body == b"app/train.py:12(step) 250000\napp/train.py:12(step);app/model.py:7(forward) 1500000\n"


FRAMES = [
    {"parent": None, "file": "/app/train.py", "line": 12, "name": "step", "self_seconds": 0.25},
    {"parent": 0, "file": "/app/model.py", "line": 7, "name": "forward", "self_seconds": 1.5},
]


async def test_tree_holds_the_paths_that_have_time_numbered_anew(server: Server) -> None:
    _, _, body = await ask(server, "/v1/stats/step?start=3&format=tree&profiler=pyinstrument")
    assert json.loads(body) == {"spans": 2, "from": 1.0000005, "to": 2.0, "frames": FRAMES}


@pytest.mark.parametrize(
    ("target", "phases"),
    [
        ("training-phases?", [("train", "train"), ("train", "eval")]),
        ("training-phases?start_mode=train&end_mode=eval&", [("train", "eval")]),
        ("job-phases?", [(phase,) for phase in JOB_PHASES]),
        ("job-phases?job_phase=finalization&", [("finalization",)]),
    ],
)
async def test_phases_have_trees_too(server: Server, target: str, phases: list[tuple[str, ...]]) -> None:
    _, _, body = await ask(server, f"/v1/stats/{target}format=tree&profiler=pyinstrument")
    answered = json.loads(body)["phases"]
    keys = ("job_phase",) if target.startswith("job") else ("start_mode", "end_mode")
    assert [tuple(phase[key] for key in keys) for phase in answered] == phases
    assert [phase["frames"] for phase in answered] == [FRAMES] * len(phases)


async def test_profiles_lists_the_spans_that_were_selected(engine: FakeEngine, server: Server) -> None:
    _, _, body = await ask(server, "/v1/stats/step?start=3&format=profiles&profiler=pyinstrument&node=any")
    assert [row["span"] for row in json.loads(body)["profiles"]] == [EARLY_NAME, SPAN_NAME]
    assert engine.asked == [(ByStep(start_step=3), Scope(profiler="pyinstrument", nodes=("any",)), False)]


async def test_html_is_a_page_and_speedscope_a_file(server: Server) -> None:
    _, headers, body = await ask(server, "/v1/stats/step?start=3&format=html&profiler=pyinstrument")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert b"pyinstrumentHTMLRenderer" in body
    _, headers, body = await ask(server, "/v1/stats/step?start=3&format=speedscope&profiler=pyinstrument")
    assert headers["content-disposition"] == 'attachment; filename="step.speedscope.json"'
    assert [frame["name"] for frame in json.loads(body)["shared"]["frames"]] == ["step", "[self]", "forward"]


ONE_SPAN = "/v1/profile?job=training&framework=pytorch&profiler=cprofile&node=0-a&span="


async def test_a_span_s_data_file_is_given_as_it_is(engine: FakeEngine, server: Server) -> None:
    status, headers, body = await ask(server, ONE_SPAN + SPAN_NAME)
    assert (status, body) == (200, b"a profile")
    assert headers["content-disposition"] == 'attachment; filename="python_stats"'
    assert engine.calls == [f"read training/pytorch/cprofile/0-a/{SPAN_NAME}"]


async def test_a_span_that_is_unknown_or_cannot_be_read_is_not_found(engine: FakeEngine, server: Server) -> None:
    status, code, message, parameter = error_of(await ask(server, ONE_SPAN + "nonsense"))
    assert (status, code, parameter) == (404, "not_found", "span")
    assert message == "there is no span 'nonsense' of this job, framework, profiler and node"
    engine.failure = ReadError("its folder holds no data file", kind="missing")
    status, code, message, parameter = error_of(await ask(server, ONE_SPAN + SPAN_NAME))
    assert (status, code, parameter) == (404, "not_found", "span")
    assert message.endswith("its folder holds no data file")


async def test_a_table_too_large_for_the_loop_gives_the_same_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.api.routes.SMALL_ROWS", 0)
    _, _, body = await ask(server, "/v1/stats/step?start=3")
    assert json.loads(body) == STATS


async def test_fresh_polls_before_names_are_looked_up(engine: FakeEngine, server: Server) -> None:
    await ask(server, "/v1/stats/step?start=3&fresh=true&node=0-a")
    assert engine.calls == ["refresh", "nodes"]
    engine.calls.clear()
    await ask(server, "/v1/stats/step?start=3&fresh=false")
    assert engine.calls == []


async def test_the_metrics_page_is_served_as_it_is(engine: FakeEngine, server: Server) -> None:
    status, headers, body = await ask(server, "/metrics")
    assert (status, headers["content-type"], body) == (200, PLAIN_TYPE, b"# a page\n")
    engine.page = None
    assert error_of(await ask(server, "/metrics")) == (
        503,
        "starting",
        "the first page is not drawn yet; try again",
        None,
    )


async def test_the_landing_page_links_to_what_there_is(server: Server) -> None:
    status, headers, body = await ask(server, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'href="/metrics"' in body
    assert b'href="/v1/openapi.json"' in body


async def test_percent_and_plus_are_decoded_in_names(engine: FakeEngine, server: Server) -> None:
    reply = await ask(server, "/v1/nodes?node=" + quote("é 漢&=+%"))
    assert error_of(reply)[2].startswith("node 'é 漢&=+%' has no profiles")
    assert error_of(await ask(server, "/v1/nodes?node=a+b"))[2].startswith("node 'a b' has no profiles")


async def test_requests_are_counted_by_route_and_status(server: Server) -> None:
    for target in ("/v1/status", "/v1/status", "/v1/status?x=1", "/nothing/at/all", "/v1/stats/time"):
        await ask(server, target)
    statistics = server.statistics()
    assert statistics.requests == {
        ("/v1/status", 200): 2,
        ("/v1/status", 400): 1,
        ("other", 404): 1,
        ("/v1/stats/time", 400): 1,
    }
    assert statistics.running == 0
    assert statistics.seconds.keys() == {"/v1/status", "other", "/v1/stats/time"}


# -- errors ------------------------------------------------------------------------------------------------------------

MODE_WORDS = "train, eval, predict, global, prestepzero, posthookclose"
PHASE_WORDS = "start, stepstart, forwardpassend, stepend, end"
REFUSED: list[tuple[str, str, str]] = [
    ("/v1/status?fresh=true", "fresh", "unknown parameter 'fresh'. Allowed: none"),
    ("/v1/jobs?job=training", "job", "unknown parameter 'job'. Allowed: fresh"),
    ("/v1/jobs?fresh=yes", "fresh", "fresh='yes': must be true or false"),
    ("/v1/nodes?profiler=perf", "profiler", "profiler='perf': must be one of cprofile, pyinstrument"),
    ("/v1/nodes?node=", "node", "node='': must not be empty"),
    ("/v1/nodes?node=any&node=0-a", "node", "node=any stands for one node and cannot be joined with others"),
    ("/v1/profiles?limit=0", "limit", "limit='0': must be a whole number from 1 to 10000"),
    ("/v1/profiles?limit=10001", "limit", "limit='10001': must be a whole number from 1 to 10000"),
    ("/v1/profiles?after=-1", "after", "after='-1': must be a whole number from 0 to"),
    ("/v1/profiles?sort=self", "sort", "unknown parameter 'sort'"),
    ("/v1/stats/step", "start", "start is missing: the first step, for example start=100"),
    ("/v1/stats/step?start=*", "start", "start='*': must be a step: digits, at most"),
    ("/v1/stats/step?start=9&end=8", "end", "end=8 is before start=9"),
    ("/v1/stats/step?start=9&start=9", "start", "start may be given only once"),
    ("/v1/stats/step?start=9&mode=Train", "mode", f"mode='Train': must be one of {MODE_WORDS}"),
    ("/v1/stats/step?start=9&start_phase=x", "start_phase", f"start_phase='x': must be one of {PHASE_WORDS}"),
    ("/v1/stats/step?start=9&end_phase=x", "end_phase", f"end_phase='x': must be one of {PHASE_WORDS}"),
    ("/v1/stats/step?start=9&rule=new", "rule", "rule='new': must be one of original, documented"),
    ("/v1/stats/step?start=9&rule=documented", "end", "end is missing: rule=documented needs it, start <= step < end"),
    ("/v1/stats/step?start=9&callers=maybe", "callers", "callers='maybe': must be true or false"),
    ("/v1/stats/step?start=9&sort=time", "sort", "sort='time': must be one of self, cumulative, calls"),
    ("/v1/stats/step?start=9&limit=-1", "limit", "limit='-1': must be a whole number from 0 to"),
    ("/v1/stats/step?start=9&format=xml", "format", "format='xml': must be one of json, csv, pstats, profiles, tree,"),
    ("/v1/stats/step?start=9&format=html", "format", "format=html needs call trees: add profiler=pyinstrument"),
    ("/v1/stats/step?start=9&format=folded", "format", "format=folded needs call trees: add profiler=pyinstrument"),
    ("/v1/stats/step?start=9&format=pstats&profiler=pyinstrument", "format", "format=pstats needs call counts"),
    ("/v1/stats/step?start=9&framework=", "framework", "framework='': must not be empty"),
    ("/v1/stats/time?start=1", "end", "end is missing: seconds since the epoch"),
    ("/v1/stats/time?start=now&end=2", "start", "start='now': must be a time in seconds since the epoch"),
    ("/v1/stats/time?start=1&end=inf", "end", "end='inf': must be a time in seconds since the epoch"),
    ("/v1/stats/time?start=2&end=1", "end", "end=1.0 is before start=2.0"),
    ("/v1/stats/time?start=1&end=2&overlap=all", "overlap", "overlap='all': must be one of ends, any"),
    ("/v1/stats/modes?end_mode=eval", "start_mode", "start_mode is missing: for example start_mode=train"),
    ("/v1/stats/modes?start_mode=train", "end_mode", "end_mode is missing: for example end_mode=eval"),
    ("/v1/stats/pre-step-zero?start=1", "start", "unknown parameter 'start'"),
    ("/v1/stats/post-hook-close?jobs=x", "jobs", "unknown parameter 'jobs'; did you mean job?"),
    ("/v1/stats/training-phases?start_mode=x", "start_mode", f"start_mode='x': must be one of {MODE_WORDS}"),
    ("/v1/stats/training-phases?format=folded", "format", "format='folded': holds no phases: use json, csv,"),
    ("/v1/stats/training-phases?format=pstats", "format", "format=pstats holds one phase: pick one that has spans"),
    ("/v1/stats/training-phases?format=pstats&start_mode=eval&end_mode=eval", "format", "format=pstats holds one"),
    ("/v1/stats/job-phases?job_phase=loop", "job_phase", "job_phase='loop': must be one of initialization"),
    ("/v1/stats/job-phases?format=pstats", "format", "format=pstats holds one phase: pick one that has spans with job"),
    ("/v1/watch?node=any", "node", "node=any means nothing here: name a node or leave it out"),
    ("/v1/watch?fresh=true", "fresh", "unknown parameter 'fresh'. Allowed: job, node, framework, profiler"),
]


@pytest.mark.parametrize(("target", "parameter", "message"), REFUSED)
async def test_a_wrong_parameter_is_named_with_what_is_allowed(
    engine: FakeEngine, server: Server, target: str, parameter: str, message: str
) -> None:
    status, code, said, named = error_of(await ask(server, target))
    assert (status, code, named) == (400, "bad_parameter", parameter)
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("target", "parameter", "message"),
    [
        ("/v1/nodes?job=nope", "job", "job 'nope' has no profiles; there are: other, training"),
        ("/v1/profiles?node=9-x", "node", "node '9-x' has no profiles; there are: 0-a, 1-b"),
        ("/v1/stats/step?start=1&node=0-a&node=9-x", "node", "node '9-x' has no profiles; there are: 0-a, 1-b"),
        ("/v1/stats/job-phases?framework=jax", "framework", "framework 'jax' has no profiles; there are: pytorch"),
        ("/v1/watch?job=nope", "job", "job 'nope' has no profiles; there are: other, training"),
    ],
)
async def test_an_unknown_name_is_404_with_the_names_there_are(
    server: Server, target: str, parameter: str, message: str
) -> None:
    status, code, said, named = error_of(await ask(server, target))
    assert (status, code, named) == (404, "not_found", parameter)
    assert said.startswith(message)


@pytest.mark.parametrize("target", ["/v1", "/v1/", "/v1/stats", "/v1/status/", "/V1/status", "/v2/status", "//v1/jobs"])
async def test_an_unknown_route_is_404_with_the_routes_there_are(server: Server, target: str) -> None:
    status, code, said, named = error_of(await ask(server, target))
    assert (status, code, named) == (404, "no_such_route", None)
    assert said.startswith(f"no route '{target}'; there are: /v1/status, ")
    for path in ("/v1/stats/job-phases", "/v1/watch", "/v1/openapi.json", "/metrics"):
        assert path in said


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_other_methods_are_405_and_told_what_is_allowed(server: Server, method: str) -> None:
    reply = await ask(server, "/v1/status", method)
    assert error_of(reply)[:2] == (405, "http_error")
    assert "GET" in reply[1]["allow"]


async def test_a_url_too_long_is_413_and_one_that_no_buffer_holds_is_refused(server: Server) -> None:
    status, code, message, _ = error_of(await ask(server, "/v1/nodes?node=" + "n" * 70_000))
    assert (status, code) == (413, "too_large")
    assert message == "the URL has more than 65536 bytes; ask for less at once"
    assert (await ask(server, "/v1/status"))[0] == 200


ODD = [
    "/v1/nodes?node=%",
    "/v1/nodes?node=%zz",
    "/v1/nodes?node=%ff",
    "/v1/nodes?node=%00",
    "/v1/nodes?node=%0d%0aX-Forged:%201",
    "/v1/nodes?node=%ed%b2%80",
    "/v1/nodes?%ff=1",
    "/v1/nodes?%ed%b2%80=1",
    "/v1/nodes?&&&;=&",
    "/v1/%ff",
    "/v1/%",
    "/v1/%00",
    "/v1/%2e%2e/%2e%2e/etc/passwd",
    "/v1/../metrics/../../etc/passwd",
    "/v1/st%61tus?%20",
    "*",
    "http://elsewhere/v1/nothing",
    b"/v1/nodes?node=\xff",
    b"/v1/nodes?\xff=1",
    b"/v1/\xff\xfe",
    b"/v1/nodes?node=\xed\xb2\x80",
    b"/v1/nodes?\xed\xb2\x80=1",
]


@pytest.mark.parametrize("target", ODD)
async def test_what_is_no_proper_url_is_the_client_s_fault(server: Server, target: str | bytes) -> None:
    status, headers, _ = await ask(server, target)
    assert 400 <= status < 500
    assert "x-forged" not in headers
    assert (await ask(server, "/v1/status"))[0] == 200


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (StoreError("the store is full"), (503, "unavailable", "the store is full", None)),
        (SourceUnavailable("the folder is away"), (503, "unavailable", "the folder is away", None)),
        (KeyError("secret"), (500, "internal", "an error of phasewatch itself; its log says more", None)),
    ],
)
async def test_a_failure_inside_costs_one_request(
    engine: FakeEngine,
    server: Server,
    failure: Exception,
    expected: tuple[int, str, str, str | None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.failure = failure
    with caplog.at_level(logging.ERROR, "phasewatch.server"):
        assert error_of(await ask(server, "/v1/stats/step?start=1")) == expected
    assert [record.levelname for record in caplog.records] == (["ERROR"] if expected[0] == 500 else [])
    engine.failure = None
    assert (await ask(server, "/v1/stats/step?start=1"))[0] == 200
    assert server.statistics().running == 0


# -- load --------------------------------------------------------------------------------------------------------------


async def collect_status(server: Server, answers: list[int]) -> None:
    """Ask a question and note the answer's status."""
    answers.append((await ask(server, "/v1/stats/step?start=1"))[0])


async def test_one_query_too_many_is_503_busy_and_waits_no_longer_than_told(
    engine: FakeEngine, short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LONGEST_WAIT_SECONDS", 0.05)
    engine.held = anyio.Event()
    answers: list[int] = []
    async with serving(engine, short_tmp_path, max_concurrent=1) as running, anyio.create_task_group() as group:
        group.start_soon(collect_status, running, answers)
        while not engine.asked:
            await anyio.wait_all_tasks_blocked()
        assert running.statistics().running == 1
        status, code, message, _ = error_of(await ask(running, "/v1/status"))
        assert (status, code, message) == (503, "busy", "1 queries run already; try again")
        assert (await ask(running, "/metrics"))[0] == 200
        engine.held.set()
    assert answers == [200]


async def test_a_query_waits_for_its_turn(engine: FakeEngine, short_tmp_path: Path) -> None:
    engine.held = anyio.Event()
    answers: list[int] = []
    async with serving(engine, short_tmp_path, max_concurrent=2) as running:
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(collect_status, running, answers)
            while len(engine.asked) < 2:
                await anyio.wait_all_tasks_blocked()
            assert running.statistics().running == 2
            engine.held.set()
        assert answers == [200] * 6
        assert running.statistics().running == 0


async def test_a_query_that_takes_too_long_is_503_and_says_which_setting(
    engine: FakeEngine, short_tmp_path: Path
) -> None:
    engine.held = anyio.Event()
    async with serving(engine, short_tmp_path, timeout_seconds=0.05) as server:
        reply = error_of(await ask(server, "/v1/stats/step?start=1"))
        assert server.statistics().running == 0
    assert reply == (
        503,
        "timeout",
        "the query took longer than 0.05 s; ask for less, or raise query.timeout_seconds",
        None,
    )


async def test_a_client_that_leaves_gives_its_turn_back(engine: FakeEngine, short_tmp_path: Path) -> None:
    engine.held = anyio.Event()
    async with serving(engine, short_tmp_path, max_concurrent=1) as server:
        async with await connect(server) as stream:
            await begin_query(stream, engine)
        with anyio.fail_after(DEADLINE_SECONDS):
            await engine.cancelled.wait()
        assert (await ask(server, "/v1/status"))[0] == 200


# -- TCP and the end ---------------------------------------------------------------------------------------------------


async def test_tcp_serves_the_metrics_and_nothing_else(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0") as server:
        assert (await ask(server.address, "/metrics"))[2] == b"# a page\n"
        for path in ("/v1/status", "/v1/watch", "/v1/openapi.json", "/v1/stats/step?start=1"):
            status, code, message, _ = error_of(await ask(server.address, path))
            assert (status, code) == (404, "no_such_route")
            assert message.endswith("there are: /metrics, /sd")
        assert b"/v1/" not in (await ask(server.address, "/"))[2]
        assert (await ask(server, "/v1/status"))[0] == 200
    assert engine.asked == []


async def test_tcp_serves_the_api_where_that_is_configured(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", listen_api=True) as server:
        assert json.loads((await ask(server.address, "/v1/stats/step?start=1"))[2]) == STATS


async def test_without_an_address_there_is_no_tcp(server: Server) -> None:
    assert server.address == ""


async def test_an_address_that_is_taken_is_told_and_leaves_no_socket(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0") as server:
        other = short_tmp_path / "other"
        with pytest.raises(ConfigError, match=rf"cannot listen on {server.address}: .*--listen HOST:PORT"):
            async with serving(engine, other, listen=server.address):
                pass
        assert not (other / "s.sock").exists()


async def test_idle_connections_do_not_hold_up_the_end(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0") as server:
        streams: list[Any] = []
        for where in (server, server.address):
            streams.append(await connect(where))
            await streams[-1].send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await streams[-1].receive()
            streams.append(await connect(where))
            await streams[-1].send(b"GET /met")
        started = time.monotonic()
    assert time.monotonic() - started < STOP_SECONDS
    for stream in streams:
        await stream.aclose()


async def test_a_query_under_way_does_not_hold_up_the_end(engine: FakeEngine, short_tmp_path: Path) -> None:
    engine.held = anyio.Event()
    async with serving(engine, short_tmp_path) as running:
        stream = await connect(running)
        await begin_query(stream, engine)
        started = time.monotonic()
    assert time.monotonic() - started < STOP_SECONDS
    engine.held.set()
    await stream.aclose()


async def test_no_query_goes_on_after_the_end(engine: FakeEngine, short_tmp_path: Path) -> None:
    engine.held = anyio.Event()
    async with serving(engine, short_tmp_path, timeout_seconds=60) as running:
        stream = await connect(running)
        await begin_query(stream, engine)
    try:
        with anyio.fail_after(0.5):
            await engine.cancelled.wait()
    finally:
        await stream.aclose()


async def begin_query(stream: ByteStream, engine: FakeEngine) -> None:
    """Ask a question that the engine holds, and wait until it has it."""
    await stream.send(b"GET /v1/stats/step?start=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    while not engine.asked:
        await anyio.wait_all_tasks_blocked()
