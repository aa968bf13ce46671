"""Watch: new spans as server-sent events, filters, readers that never read, and what ends a subscription."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from monitor.api import watch
from monitor.api.server import Server
from tests.api.test_server import (
    DEADLINE_SECONDS,
    NODE,
    PROFILE,
    STOP_SECONDS,
    FakeEngine,
    ask,
    connect,
    serving,
    serving_for_a_fixture,
    span_row,
)

Event = tuple[str, object]
LISTENING = b": listening\n\n"


class Reader:
    """One client of /v1/watch, which takes the chunks of its stream apart."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.headers = b""
        self._received = b""

    async def begin(self) -> None:
        """Read the headers and the first comment."""
        self.headers = await self._until(b"\r\n\r\n")
        assert await self.block() == LISTENING.strip()

    async def block(self) -> bytes:
        """Wait for the next block, an event or a comment."""
        with anyio.fail_after(DEADLINE_SECONDS):
            size = int(await self._until(b"\r\n"), 16)
            if size == 0:
                raise anyio.EndOfStream
            while len(self._received) < size + 2:
                self._received += await self.stream.receive()
            chunk, self._received = self._received[:size], self._received[size + 2 :]
            assert chunk.endswith(b"\n\n")
            return chunk.strip()

    async def event(self) -> Event:
        """Wait for the next event."""
        while (block := await self.block()).startswith(b":"):
            pass
        kind, data = block.split(b"\n")
        return kind.decode().removeprefix("event: "), json.loads(data.removeprefix(b"data: "))

    async def _until(self, mark: bytes) -> bytes:
        with anyio.fail_after(DEADLINE_SECONDS):
            while mark not in self._received:
                self._received += await self.stream.receive()
        found, _, self._received = self._received.partition(mark)
        return found


@asynccontextmanager
async def watching(where: Server | str, query: str = "") -> AsyncIterator[Reader]:
    """Watch while the block lasts."""
    async with await connect(where) as stream:
        await stream.send(b"GET /v1/watch" + query.encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        reader = Reader(stream)
        await reader.begin()
        yield reader


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def server(engine: FakeEngine, short_tmp_path: Path) -> AsyncIterator[Server]:
    async with serving_for_a_fixture(engine, short_tmp_path) as running:
        yield running


async def test_a_new_span_arrives_as_an_event(engine: FakeEngine, server: Server) -> None:
    async with watching(server) as reader:
        assert b"200 OK" in reader.headers
        assert b"Content-Type: text/event-stream" in reader.headers
        assert b"Cache-Control: no-store" in reader.headers
        engine.watchers.publish([span_row(), span_row(node="1-b")])
        assert await reader.event() == ("span", PROFILE)
        assert await reader.event() == ("span", PROFILE | {"node_id": "1-b"})


async def test_every_reader_gets_every_span(engine: FakeEngine, server: Server) -> None:
    async with watching(server) as first, watching(server) as second:
        assert engine.watchers.statistics().readers == 2
        engine.watchers.publish([span_row()])
        assert await first.event() == await second.event() == ("span", PROFILE)


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        ("", ["0-a", "1-b", "2-c", "3-d"]),
        ("?node=1-b", ["1-b"]),
        ("?node=0-a&node=1-b", ["0-a", "1-b"]),
        ("?job=other", ["1-b"]),
        ("?framework=tensorflow", ["1-b", "2-c"]),
        ("?profiler=pyinstrument", ["1-b", "3-d"]),
        ("?profiler=pyinstrument&framework=tensorflow", ["1-b"]),
    ],
)
async def test_a_reader_gets_only_what_it_asked_for(
    engine: FakeEngine, server: Server, query: str, nodes: list[str]
) -> None:
    async with watching(server, query) as reader:
        rows = [
            span_row(node="0-a"),
            span_row(node="1-b", job="other", framework="tensorflow", profiler="pyinstrument"),
            span_row(node="2-c", framework="tensorflow"),
            span_row(node="3-d", profiler="pyinstrument"),
        ]
        engine.watchers.publish(rows)
        engine.watchers.publish(rows[::-1])
        for node in nodes + nodes[::-1]:
            kind, content = await reader.event()
            assert isinstance(content, dict)
            assert (kind, content["node_id"]) == ("span", node)


async def test_names_cannot_break_an_event_in_two(engine: FakeEngine, server: Server) -> None:
    async with watching(server) as reader:
        engine.watchers.publish([span_row(node="0-\n\nevent: forged\ndata: {}\r\u2028")])
        kind, content = await reader.event()
        assert (kind, content) == ("span", PROFILE | {"node_id": "0-\n\nevent: forged\ndata: {}\r\u2028"})


async def test_a_quiet_stream_says_that_it_is_alive_and_loses_nothing(
    engine: FakeEngine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "HEARTBEAT_SECONDS", 0.005)
    async with watching(server) as reader:
        for _ in range(20):
            assert await reader.block() == b": still here"
            engine.watchers.publish([span_row()])
            assert await reader.event() == ("span", PROFILE)


async def test_a_reader_that_never_reads_blocks_nobody_and_is_told_its_loss(short_tmp_path: Path) -> None:
    engine = FakeEngine(most_waiting=10)
    published = 0
    async with serving(engine, short_tmp_path) as server:
        with socket.socket(socket.AF_UNIX) as stuck:
            stuck.connect(str(server.socket))
            stuck.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
            with anyio.fail_after(DEADLINE_SECONDS):
                await engine.joined.wait()
            async with watching(server) as fast:
                while published < 2000 or not engine.watchers.statistics().dropped:
                    engine.watchers.publish([span_row() for _ in range(10)])
                    published += 10
                    for _ in range(10):
                        assert await fast.event() == ("span", PROFILE)
                assert json.loads((await ask(server, "/v1/nodes?node=0-a"))[2])["nodes"][0] == NODE
            lost = engine.watchers.statistics().dropped
            stuck.setblocking(False)
            async with await anyio.abc.UNIXSocketStream.from_socket(stuck.dup()) as stream:
                slow = Reader(stream)
                await slow.begin()
                spans = told = 0
                while spans + told < published:
                    kind, content = await slow.event()
                    assert isinstance(content, dict)
                    told += content["count"] if kind == "dropped" else 0
                    spans += kind == "span"
                assert told == lost > 0
                engine.watchers.publish([span_row(node="9-z")])
                assert await slow.event() == ("span", PROFILE | {"node_id": "9-z"})


async def test_a_reader_that_never_reads_and_leaves_ends_its_subscription(short_tmp_path: Path) -> None:
    engine = FakeEngine(most_waiting=10)
    async with serving(engine, short_tmp_path) as server:
        with socket.socket(socket.AF_UNIX) as stuck:
            stuck.connect(str(server.socket))
            stuck.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
            with anyio.fail_after(DEADLINE_SECONDS):
                await engine.joined.wait()
                while not engine.watchers.statistics().dropped:
                    engine.watchers.publish([span_row() for _ in range(10)])
                    await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(DEADLINE_SECONDS):
            await engine.left.wait()
    assert not engine.watchers


async def test_a_reader_that_leaves_ends_its_subscription(engine: FakeEngine, server: Server) -> None:
    async with watching(server):
        assert engine.watchers.statistics().readers == 1
    with anyio.fail_after(DEADLINE_SECONDS):
        await engine.left.wait()
    assert not engine.watchers


async def test_watchers_take_no_query_s_place(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with (
        serving(engine, short_tmp_path, max_concurrent=1) as server,
        watching(server),
        watching(server),
    ):
        assert (await ask(server, "/v1/status"))[0] == 200
        assert server.statistics().running == 0


async def close(engine: FakeEngine, *streams: ByteStream) -> None:
    """Leave, and wait until the server has noticed."""
    for stream in streams:
        await stream.aclose()
    with anyio.fail_after(DEADLINE_SECONDS):
        while engine.watchers:
            await anyio.wait_all_tasks_blocked()


async def test_open_streams_do_not_hold_up_the_end(engine: FakeEngine, short_tmp_path: Path) -> None:
    streams: list[ByteStream] = []
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0", listen_api=True) as server:
        for where in (server, server.address, server):
            streams.append(await connect(where))
            await streams[-1].send(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
            await Reader(streams[-1]).begin()
        started = time.monotonic()
    took = time.monotonic() - started
    await close(engine, *streams)
    assert took < STOP_SECONDS


async def test_an_open_stream_ends_with_the_server(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path) as server:
        stream = await connect(server)
        await stream.send(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
        await Reader(stream).begin()
    try:
        with anyio.fail_after(0.5):
            await engine.left.wait()
    finally:
        await close(engine, stream)


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_watching_is_only_reading(server: Server, method: str) -> None:
    assert (await ask(server, "/v1/watch", method))[0] == 405


async def test_asking_for_the_headers_alone_ends_at_once(engine: FakeEngine, server: Server) -> None:
    stream = await connect(server)
    try:
        await stream.send(b"HEAD /v1/watch HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        with anyio.fail_after(0.5):
            while b'{"jobs":' not in received:
                received += await stream.receive()
    finally:
        await close(engine, stream)
