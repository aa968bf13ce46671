"""Both clients on a real server: answers, errors, streams, and a daemon that is not there or goes away."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from monitor.api.schema import DroppedEvent, ProfileAnswer
from monitor.api.server import Server
from monitor.client import AsyncClient, Client, checked, open_client, parse_events, url_of
from monitor.errors import QueryError, SourceUnavailable
from monitor.selection import BetweenModes, ByStep, ByTime, PostHookClose, PreStepZero
from monitor.spans import PythonProfileModes
from tests.api.test_server import DEADLINE_SECONDS, SPAN_NAME, FakeEngine, serving_for_a_fixture, span_row

Call = Callable[..., Awaitable[Any]]
"""Calls a client's method by its name, in a thread where the client blocks."""

KINDS = ["blocking", "asynchronous"]


@asynccontextmanager
async def calling(kind: str, path: Path, timeout_seconds: float = DEADLINE_SECONDS) -> AsyncIterator[Call]:
    """Open a client of either kind."""
    if kind == "blocking":
        client = Client(path, timeout_seconds=timeout_seconds)

        async def blocking(method: str, *arguments: object, **words: object) -> Any:
            call = functools.partial(getattr(client, method), *arguments, **words)
            return await anyio.to_thread.run_sync(call)

        yield blocking
        return
    async with open_client(path, timeout_seconds=timeout_seconds) as other:

        async def direct(method: str, *arguments: object, **words: object) -> Any:
            return await getattr(other, method)(*arguments, **words)

        yield direct


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(most_waiting=5)


@pytest.fixture
async def server(engine: FakeEngine, short_tmp_path: Path) -> AsyncIterator[Server]:
    async with serving_for_a_fixture(engine, short_tmp_path) as running:
        yield running


@contextmanager
def one_answer(path: Path, answer: bytes) -> Iterator[None]:
    """Somebody who listens, reads one request, answers these bytes, and hangs up."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        listener.close()  # a client that tries again finds nobody
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join(DEADLINE_SECONDS)


QUESTIONS: list[tuple[str, tuple[object, ...], object]] = [
    ("step", (3,), ByStep(start_step=3)),
    ("step", (3, 9), ByStep(start_step=3, end_step=9)),
    ("time", (1.5, 1796116656.9168598), ByTime(start=1.5, end=1796116656.9168598)),
    ("modes", ("train", "eval"), BetweenModes(start_mode=PythonProfileModes.TRAIN, end_mode=PythonProfileModes.EVAL)),
    ("pre_step_zero", (), PreStepZero()),
    ("post_hook_close", (), PostHookClose()),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "arguments", "question"), QUESTIONS)
async def test_a_question_arrives_and_its_answer_comes_back(
    engine: FakeEngine, server: Server, kind: str, method: str, arguments: tuple[object, ...], question: object
) -> None:
    async with calling(kind, server.socket) as call:
        answer = await call(method, *arguments, callers=True, node=["0-a", "1-b"], job="training", limit=None)
    ((asked, scope, callers),) = engine.asked
    assert (asked, callers, scope.nodes, scope.jobs) == (question, True, ("0-a", "1-b"), ("training",))
    assert (answer.spans, answer.from_, answer.to) == (2, 1.0000005, 2.0)
    assert [(row.name, row.calls, row.self_seconds) for row in answer.functions] == [
        ("forward", 6, 1.5),
        ("step", 2, 0.25),
    ]
    assert [caller.name for caller in answer.functions[0].callers] == ["step", "forward"]


@pytest.mark.parametrize("kind", KINDS)
async def test_lists_phases_and_status_come_back_typed(server: Server, kind: str) -> None:
    async with calling(kind, server.socket) as call:
        assert [(phase.start_mode, phase.end_mode) for phase in (await call("training_phases")).phases] == [
            ("train", "train"),
            ("train", "eval"),
        ]
        phases = (await call("job_phases", job_phase="finalization")).phases
        assert [(phase.job_phase, phase.spans) for phase in phases] == [("finalization", 2)]
        page = await call("profiles", limit=2)
        assert (page.profiles[1].span, page.next) == (SPAN_NAME, 2)
        assert [row.node for row in (await call("nodes", profiler="cprofile")).nodes] == ["0-a"]
        assert [(row.job, row.spans) for row in (await call("jobs", fresh=True)).jobs] == [("training", 2)]
        assert await call("status") == {"profiles": 2, "state": "ready"}


@pytest.mark.parametrize("kind", KINDS)
async def test_other_formats_come_raw_with_their_type(server: Server, kind: str) -> None:
    async with calling(kind, server.socket) as call:
        content_type, body = await call("raw", "/v1/stats/step", start=3, format="csv", limit=0)
    assert content_type == "text/csv; charset=utf-8"
    assert body == b"file,line,name,primitive_calls,calls,self_seconds,cumulative_seconds\r\n"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_is_raised_as_the_daemon_says_it(server: Server, kind: str) -> None:
    async with calling(kind, server.socket) as call:
        with pytest.raises(QueryError, match=r"^mode='trian': must be one of train, eval") as caught:
            await call("step", 3, mode="trian")
        assert (caught.value.status, caught.value.code, caught.value.parameter) == (400, "bad_parameter", "mode")
        with pytest.raises(QueryError, match="node '9-x' has no profiles") as caught:
            await call("nodes", node="9-x")
        assert (caught.value.status, caught.value.code) == (404, "not_found")
        assert (await call("step", 3)).spans == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("there", ["nothing", "stale socket", "file"])
async def test_where_nobody_listens_it_is_told_what_to_do(short_tmp_path: Path, kind: str, there: str) -> None:
    path = short_tmp_path / "s.sock"
    if there == "stale socket":
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(str(path))
    elif there == "file":
        path.write_text("no socket")
    said = rf"no daemon answers on {path} \(.+\): start one with `phasewatch run PATH`, or name its --socket"
    async with calling(kind, path) as call:
        with pytest.raises(SourceUnavailable, match=said):
            await call("status")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_path_too_long_for_a_socket_is_nobody_who_listens(tmp_path: Path, kind: str) -> None:
    async with calling(kind, tmp_path / ("x" * 200)) as call:
        with pytest.raises(SourceUnavailable, match="no daemon answers"):
            await call("status")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_daemon_that_hangs_up_is_unavailable(short_tmp_path: Path, kind: str) -> None:
    path = short_tmp_path / "s.sock"
    with one_answer(path, b""):
        async with calling(kind, path) as call:
            with pytest.raises(SourceUnavailable, match="no daemon answers"):
                await call("status")


CUT = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"profiles"'


@pytest.mark.parametrize("kind", KINDS)
async def test_a_daemon_that_goes_while_it_answers_is_unavailable(short_tmp_path: Path, kind: str) -> None:
    path = short_tmp_path / "s.sock"
    with one_answer(path, CUT):
        async with calling(kind, path) as call:
            with pytest.raises(SourceUnavailable, match="no daemon answers"):
                await call("status")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_daemon_that_takes_too_long_is_unavailable(engine: FakeEngine, server: Server, kind: str) -> None:
    engine.held = anyio.Event()
    async with calling(kind, server.socket, timeout_seconds=0.05) as call:
        with pytest.raises(SourceUnavailable, match="no daemon answers"):
            await call("step", 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_without_a_reason_is_told_with_its_status(short_tmp_path: Path, kind: str) -> None:
    path = short_tmp_path / "s.sock"
    with one_answer(path, b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nhuh?"):
        async with calling(kind, path) as call:
            with pytest.raises(QueryError, match=r"^the daemon answered 502 without saying why$") as caught:
                await call("status")
    assert (caught.value.status, caught.value.code, caught.value.parameter) == (502, "unknown", None)


# -- streams -----------------------------------------------------------------------------------------------------------


async def publish_when_watched(engine: FakeEngine, *nodes: str) -> None:
    """Publish a span of each node, as soon as somebody watches."""
    await engine.joined.wait()
    engine.watchers.publish([span_row(node=node) for node in nodes])


def shown(event: ProfileAnswer | DroppedEvent) -> str | int:
    """Name an event by its node or by its loss."""
    return event.count if isinstance(event, DroppedEvent) else event.node_id


async def watched(client: AsyncClient, count: int, **words: str) -> list[str | int]:
    """Take so many events."""
    events = client.watch(**words)
    try:
        with anyio.fail_after(DEADLINE_SECONDS):
            return [shown(await anext(events)) for _ in range(count)]
    finally:
        await events.aclose()


def watched_blocking(client: Client, count: int, **words: str) -> list[str | int]:
    """Take so many events, blocking."""
    events = client.watch(**words)
    try:
        return [shown(next(events)) for _ in range(count)]
    finally:
        events.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("published", "words", "expected"),
    [
        (["0-a", "1-b"], {}, ["0-a", "1-b"]),
        (["0-a", "1-b"], {"node": "1-b"}, ["1-b"]),
        (["a", "b", "c", "d", "e", "f", "g"], {}, [2, "c", "d", "e", "f", "g"]),
        (["é\n漢"], {}, ["é\n漢"]),
    ],
)
async def test_new_spans_and_losses_arrive_while_watching(
    engine: FakeEngine,
    server: Server,
    kind: str,
    published: list[str],
    words: dict[str, str],
    expected: list[str | int],
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(publish_when_watched, engine, *published)
        if kind == "blocking":
            read = functools.partial(watched_blocking, Client(server.socket), len(expected), **words)
            got = await anyio.to_thread.run_sync(read)
        else:
            async with open_client(server.socket) as client:
                got = await watched(client, len(expected), **words)
    assert got == expected
    with anyio.fail_after(DEADLINE_SECONDS):
        await engine.left.wait()


async def test_a_refused_watch_is_raised(server: Server) -> None:
    async with open_client(server.socket) as client:
        with pytest.raises(QueryError, match="node 'x' has no profiles"):
            await watched(client, 1, node="x")
    with pytest.raises(QueryError, match="node 'x' has no profiles"):
        await anyio.to_thread.run_sync(functools.partial(watched_blocking, Client(server.socket), 1, node="x"))


async def test_watching_nobody_is_unavailable(short_tmp_path: Path) -> None:
    async with open_client(short_tmp_path / "s.sock") as client:
        with pytest.raises(SourceUnavailable, match="no daemon answers"):
            await watched(client, 1)
    with pytest.raises(SourceUnavailable, match="no daemon answers"):
        watched_blocking(Client(short_tmp_path / "s.sock"), 1)


EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'27\r\n: x\n\nevent: dropped\ndata: {"count":3}\n\n\r\n'
)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_breaks_off_gives_what_came_and_fails_as_ours(short_tmp_path: Path, kind: str) -> None:
    path = short_tmp_path / "s.sock"
    got: list[str | int] = []

    async def read_on() -> None:
        async with open_client(path) as client:
            async for event in client.watch():
                got.append(shown(event))  # noqa: PERF401 - what came before the break is kept

    def read_on_blocking() -> None:
        got.extend(shown(event) for event in Client(path).watch())

    with one_answer(path, EVENTS), contextlib.suppress(SourceUnavailable):
        await (anyio.to_thread.run_sync(read_on_blocking) if kind == "blocking" else read_on())
    assert got == [3]


# -- pieces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ({}, "/p"),
        ({"a": None}, "/p"),
        ({"a": True, "b": False}, "/p?a=true&b=false"),
        ({"a": 0, "b": 0.1, "c": 1796116656.25}, "/p?a=0&b=0.1&c=1796116656.25"),
        ({"node": ["x", "y"]}, "/p?node=x&node=y"),
        ({"node": []}, "/p"),
        ({"node": "é &=+%#?/"}, "/p?node=%C3%A9+%26%3D%2B%25%23%3F%2F"),
    ],
)
def test_words_become_a_query(words: dict[str, Any], url: str) -> None:
    assert url_of("/p", words) == url


def test_events_are_read_and_comments_are_not() -> None:
    lines = [b": listening\n", b"\n", b"event: dropped\n", b'data: {"count":4}\n', b"\n", b": still here\n", b"\n"]
    assert list(parse_events(lines)) == [DroppedEvent(count=4)]


def test_only_what_is_below_400_is_an_answer() -> None:
    assert checked(200, "text/plain", b"x") == ("text/plain", b"x")
    with pytest.raises(QueryError, match=r"^gone$") as caught:
        checked(503, "", b'{"error":{"code":"busy","message":"gone","parameter":null}}')
    assert (caught.value.status, caught.value.code) == (503, "busy")
