"""Hostile and unlucky clients over real sockets: slow, silent, many, half closed, pipelining, malformed. What each may
cost is bounded, counted and given back, and others are served all the while."""

from __future__ import annotations

import json
import resource
import socket as sockets
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream

from monitor.api.connections import Limits, affordable
from monitor.api.server import Server
from tests.api.test_server import DEADLINE_SECONDS, FakeEngine, Reply, ask, connect, error_of, parsed, serving, span_row

HASTY = Limits(head_seconds=0.4, idle_seconds=0.4, stalled_seconds=0.4)
PATIENT = Limits(head_seconds=DEADLINE_SECONDS, idle_seconds=DEADLINE_SECONDS, stalled_seconds=0.4)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(params=["unix", "tcp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def where(server: Server, kind: str) -> Server | str:
    return server if kind == "unix" else server.address


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    with anyio.fail_after(DEADLINE_SECONDS):
        while True:
            if holds():
                return
            await anyio.sleep(0.01)


async def rest(stream: ByteStream) -> bytes:
    """Read until the other side ends the connection, which it must."""
    received = b""
    with anyio.fail_after(DEADLINE_SECONDS):
        try:
            while True:
                received += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return received


async def answer_to(where: Server | str, *pieces: bytes) -> Reply:
    """Send pieces and read until the end."""
    async with await connect(where) as stream:
        for piece in pieces:
            await stream.send(piece)
        return parsed(await rest(stream))


# -- slow and silent ---------------------------------------------------------------------------------------------------


async def test_a_head_that_never_ends_is_answered_and_ended(
    engine: FakeEngine, short_tmp_path: Path, kind: str
) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", limits=HASTY) as server:
        for begun in (b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-A: "):
            reply = await answer_to(where(server, kind), begun)
            assert error_of(reply)[:2] == (408, "slow_request")
        assert server.statistics().dropped[kind, "slow_request"] == 2
        assert server.statistics().connections == {"unix": 0, "tcp": 0}


async def test_trickling_bytes_gain_no_time(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, limits=HASTY) as server, await connect(server) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\nX-A: ")
        with anyio.fail_after(DEADLINE_SECONDS), suppress(anyio.BrokenResourceError):
            while True:
                await stream.send(b"a")
                await anyio.sleep(0.02)
        assert server.statistics().dropped == {("unix", "slow_request"): 1}


async def test_a_body_that_never_ends_is_refused(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, limits=HASTY) as server, await connect(server) as stream:
        await stream.send(b"POST /v1/capture HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        with anyio.fail_after(DEADLINE_SECONDS):
            received = await stream.receive()
        assert error_of(parsed(received))[:2] == (408, "slow_request")
        assert server.statistics().running == 0


async def test_an_idle_connection_is_ended_and_a_busy_one_is_not(engine: FakeEngine, short_tmp_path: Path) -> None:
    engine.held = anyio.Event()
    async with serving(engine, short_tmp_path, limits=HASTY) as server:
        async with await connect(server) as idle, await connect(server) as busy:
            await busy.send(b"GET /v1/stats/step?start=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await idle.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await rest(idle)).endswith(b"# a page\n")
            assert server.statistics().dropped == {("unix", "idle"): 1}
            engine.held.set()
            assert parsed(await rest(busy))[0] == 200


async def test_an_answer_that_nobody_reads_ends_its_connection(
    engine: FakeEngine, short_tmp_path: Path, kind: str
) -> None:
    engine.page = b"x" * 20_000_000
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", limits=PATIENT) as server:
        async with await connect(where(server, kind)) as stream:
            await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: server.statistics().dropped.get((kind, "stalled")) == 1)
            await until(lambda: server.statistics().connections[kind] == 0)
            assert len(await rest(stream)) < len(engine.page)


async def test_an_answer_that_is_read_slowly_arrives(engine: FakeEngine, short_tmp_path: Path) -> None:
    engine.page = b"x" * 1_000_000
    async with serving(engine, short_tmp_path, limits=PATIENT) as server, await connect(server) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while not received.endswith(b"x" * len(engine.page)):
            received += await stream.receive(50_000)
            await anyio.sleep(0.05)
        assert server.statistics().dropped == {}


async def test_a_watcher_that_never_reads_is_ended_and_others_go_on(short_tmp_path: Path) -> None:
    engine = FakeEngine(most_waiting=100)
    rows = [span_row(node="n" * 5000)] * 100
    async with serving(engine, short_tmp_path, limits=PATIENT) as server:
        async with await connect(server) as stream:
            await stream.send(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
            await engine.joined.wait()
            with anyio.fail_after(DEADLINE_SECONDS):
                while engine.watchers.statistics().readers:
                    engine.watchers.publish(rows)
                    assert (await ask(server, "/v1/status"))[0] == 200
            assert server.statistics().dropped == {("unix", "stalled"): 1}


# -- many --------------------------------------------------------------------------------------------------------------


def flood(address: str, count: int) -> list[sockets.socket]:
    """Open connections that say nothing."""
    host, _, port = address.rpartition(":")
    return [sockets.create_connection((host, int(port)), DEADLINE_SECONDS) for _ in range(count)]


async def test_a_thousand_connections_are_refused_and_who_was_there_is_served(
    engine: FakeEngine, short_tmp_path: Path
) -> None:
    limits = Limits(connections=20, head_seconds=60)
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", limits=limits) as server:
        async with await connect(server.address) as early:
            await until(lambda: server.statistics().connections["tcp"] == 1)
            for _ in range(5):  # a test may not have thousands of descriptors either
                opened = await anyio.to_thread.run_sync(flood, server.address, 200)
                try:
                    assert server.statistics().connections["tcp"] <= 20
                    assert (await ask(server, "/v1/status"))[0] == 200  # the socket has a bound of its own
                finally:
                    for each in opened:
                        each.close()
            await early.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert parsed(await rest(early))[0] == 200
        assert server.statistics().dropped["tcp", "too_many"] >= 5 * (200 - 20)
        await until(lambda: server.statistics().connections["tcp"] == 0)
        assert (await ask(server.address, "/metrics"))[0] == 200


async def test_one_too_many_is_told_so(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, limits=Limits(connections=1)) as server:
        async with await connect(server):
            await until(lambda: server.statistics().connections["unix"] == 1)
            async with await connect(server) as stream:
                reply = error_of(parsed(await rest(stream)))
        assert reply == (503, "busy", "1 connections are open already; try again", None)
        await until(lambda: server.statistics().connections["unix"] == 0)
        assert (await ask(server, "/metrics"))[0] == 200


async def test_without_descriptors_it_waits_and_goes_on(engine: FakeEngine, short_tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(engine, short_tmp_path) as server, await connect(server) as stream:
        client = sockets.socket(sockets.AF_UNIX)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            with client:
                client.connect(str(server.socket))
                await until(lambda: server.statistics().dropped.get(("unix", "no_descriptor"), 0) > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert parsed(await rest(stream))[0] == 200
        assert (await ask(server, "/metrics"))[0] == 200


def test_the_bound_leaves_descriptors_for_everything_else() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert affordable(1, 2) == 1
    assert affordable(10**9, 2) == max(1, (soft - 256) // 2)


# -- half closed, pipelined, malformed ---------------------------------------------------------------------------------


async def test_a_client_that_ends_its_side_ends_its_question(
    engine: FakeEngine, short_tmp_path: Path, kind: str
) -> None:
    engine.held = anyio.Event()
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", listen_api=True) as server:
        async with await connect(where(server, kind)) as stream:
            await stream.send(b"GET /v1/stats/step?start=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: bool(engine.asked))
            await stream.send_eof()
            assert await rest(stream) == b""
            assert engine.cancelled.is_set()
            await until(lambda: server.statistics().running == 0)
        async with await connect(where(server, kind)) as stream:
            await stream.send(b"GET /met")
            await stream.send_eof()
            assert await rest(stream) == b""
        await until(lambda: server.statistics().connections[kind] == 0)


async def test_pipelined_requests_are_answered_in_order(engine: FakeEngine, short_tmp_path: Path) -> None:
    last = b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with serving(engine, short_tmp_path) as server, await connect(server) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100 + last)
        received = await rest(stream)
    assert received.count(b"# a page\n") == 100
    assert received.rindex(b"# a page\n") < received.index(b"no_such_route")


async def test_requests_that_pile_up_behind_a_slow_one_are_left_with_the_client(
    engine: FakeEngine, short_tmp_path: Path
) -> None:
    engine.held = anyio.Event()
    more = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    async with serving(engine, short_tmp_path) as server, await connect(server) as stream:
        await stream.send(b"GET /v1/stats/step?start=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        with anyio.move_on_after(1) as scope:
            while True:
                await stream.send(more)
        assert scope.cancelled_caught  # it reads no more
        assert (await ask(server, "/v1/jobs"))[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS spoken to plain HTTP
        (b"hello\r\n\r\n", 400),
        (b"GET /metrics HTTP/9.9\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost x\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/capture HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: x\r\n" * 1000 + b"\r\n", 400),
        (b"GET /" + b"x" * 2_000_000 + b" HTTP/1.1\r\n\r\n", 413),
    ],
)
async def test_what_is_no_request_is_counted_and_refused_in_the_one_shape(
    engine: FakeEngine, short_tmp_path: Path, sent: bytes, status: int
) -> None:
    async with serving(engine, short_tmp_path) as server:
        async with await connect(server) as stream:
            with pytest.raises(anyio.BrokenResourceError) if len(sent) > 10**6 else ExitStack():
                await stream.send(sent)
            reply = parsed(await rest(stream))
        assert error_of(reply)[0] == status
        assert server.statistics().refused["malformed"] == 1
        assert (await ask(server, "/v1/status"))[0] == 200


async def test_a_body_too_large_is_refused(engine: FakeEngine, short_tmp_path: Path) -> None:
    body = b" " * 70_000
    head = f"POST /v1/capture HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    async with serving(engine, short_tmp_path) as server:
        reply = await answer_to(server, head.encode(), body)
    assert error_of(reply)[0] == 413
    assert json.loads(reply[2])["error"]["code"] == "http_error"
