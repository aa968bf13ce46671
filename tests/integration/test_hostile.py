"""Bytes that others wrote: nothing crashes, memory stays within its limit, good files beside them are counted."""

from __future__ import annotations

import json
import marshal
import os
import random
import signal
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import psutil
import pytest

from monitor.decoding import DecodePool, open_decode_pool
from monitor.reading import FileData, LocalFile
from tests.integration.corpora import node_folder, span_names, write_span
from tests.integration.daemons import daemon_inside, settings_for, until

MEMORY_BYTES = 512 * 2**20
NAMES = list(span_names(60))


def hostile_files(good: bytes) -> dict[str, bytes]:
    chance = random.Random(7)
    code = compile("1", "x", "exec")
    deep = b"(" + b"\x01\x00\x00\x00"
    return {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "random": chance.randbytes(4096),
        "random after a dictionary's head": b"\xfb" + chance.randbytes(4096),
        "wrong shape": marshal.dumps([1, 2, 3]),
        "code": marshal.dumps(code),
        "code inside": marshal.dumps({("a", 1, "b"): (1, 1, 0.0, 0.0, {("c", 1, "d"): code})}),
        "deep tuples": deep * 5_000,
        "a tuple of two thousand million": b"(" + b"\xff\xff\xff\x7f" + b"N" * 10,
        "a string of two thousand million": b"s" + b"\xff\xff\xff\x7f" + b"x",
        "a number of gigabits": b"l" + b"\xff\xff\xff\x7f" + b"\x01\x00",
        "a reference to nothing": b"{r\xff\xff\xff\x00",
        "not finite": marshal.dumps({("a", 1, "b"): (1, 1, float("nan"), float("inf"), {})}),
        "many flipped bits": bytes(byte ^ (0x20 if place % 13 == 0 else 0) for place, byte in enumerate(good)),
    }


def hostile_sessions() -> dict[str, bytes]:
    frame = b'{"function":"f","file_path":"a.py","file_path_short":"a.py","line_no":1,"time":1.0,"children":['
    levels = 100_000
    return {
        "a hundred thousand levels": b'{"root_frame":' + frame * levels + b"]}" * levels + b"}",
        "not an object": b"[1,2,3]",
        "no frame": b'{"root_frame":5}',
        "not a number": b'{"root_frame":{"function":"f","time":NaN,"children":[]}}',
        "text for a time": json.dumps({"root_frame": {"function": "f", "time": "1", "children": []}}).encode(),
        "children that are none": json.dumps({"root_frame": {"function": "f", "time": 1, "children": [5]}}).encode(),
        "half": b'{"root_frame":{"function":"f","time":1',
        "bytes": bytes(range(256)),
    }


@pytest.fixture
def good(data_dir: Path) -> bytes:
    return (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()


def pool_of_one(deadline_seconds: float = 10.0):  # type: ignore[no-untyped-def]
    return open_decode_pool(
        workers=1, memory_bytes=MEMORY_BYTES, deadline_seconds=deadline_seconds, max_file_bytes=64 * 2**20
    )


def child_of(pool: DecodePool) -> psutil.Process:
    return psutil.Process(pool._idle[0].process.pid)


async def test_every_hostile_file_fails_alone(good: bytes) -> None:
    files: list[tuple[str, FileData]] = []
    for data in hostile_files(good).values():
        files += [("cprofile", FileData(data, ())), ("cprofile", FileData(good, ()))]
    for data in hostile_sessions().values():
        files += [("pyinstrument", FileData(data, ())), ("cprofile", FileData(good, ()))]
    async with pool_of_one() as pool:
        batch = (await pool.decode(files)).batch
        used = child_of(pool).memory_info().rss
    assert set(batch.failures) == set(range(0, len(files), 2))
    assert all(failure.reason for failure in batch.failures.values())
    assert set(batch.row_file.tolist()) == set(range(1, len(files), 2))
    assert used < MEMORY_BYTES


async def test_a_decoder_is_held_to_its_limits_and_has_none_of_our_secrets(
    good: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    async with pool_of_one() as pool:
        await pool.decode([("cprofile", FileData(good, ()))])
        child = child_of(pool)
        assert child.rlimit(psutil.RLIMIT_AS) == (MEMORY_BYTES, MEMORY_BYTES)
        assert child.rlimit(psutil.RLIMIT_CORE) == (0, 0)
        assert "AWS_SECRET_ACCESS_KEY" not in child.environ()
        assert child.nice() >= 5


async def test_a_session_of_a_hundred_megabytes_is_refused_unread(good: bytes, tmp_path: Path) -> None:
    huge = tmp_path / "python_stats.json"
    with huge.open("wb") as file:
        file.truncate(100 * 2**20)
    async with pool_of_one() as pool:
        files = [("pyinstrument", LocalFile(str(huge), str(tmp_path))), ("cprofile", FileData(good, ()))]
        decoded = await pool.decode(files)
    assert decoded.batch.failures[0].kind == "too_large"
    assert set(decoded.batch.row_file.tolist()) == {1}


async def test_what_needs_more_memory_than_allowed_fails_alone(good: bytes) -> None:
    frames = b",".join([b'{"function":"f","file_path":"a","line_no":1,"time":1,"children":[]}'] * 900_000)
    big = b'{"root_frame":{"function":"f","file_path":"a","line_no":1,"time":1,"children":[' + frames + b"]}}"
    async with open_decode_pool(
        workers=1, memory_bytes=300 * 2**20, deadline_seconds=20, max_file_bytes=128 * 2**20
    ) as pool:
        files = [("pyinstrument", FileData(big, ())), ("cprofile", FileData(good, ()))]
        batch = (await pool.decode(files)).batch
    assert set(batch.row_file.tolist()) == {1}
    assert set(batch.failures) == {0}


async def test_a_killed_decoder_costs_nothing(good: bytes) -> None:
    files = [("cprofile", FileData(good, ()))] * 400
    async with pool_of_one() as pool:
        await pool.decode(files[:1])
        child = child_of(pool)
        async with anyio.create_task_group() as group:

            async def kill() -> None:
                with anyio.fail_after(10):
                    while pool._idle:
                        await anyio.lowlevel.checkpoint()
                os.kill(child.pid, signal.SIGKILL)

            group.start_soon(kill)
            batch = (await pool.decode(files)).batch
        assert batch.failures == {}
        assert set(batch.row_file.tolist()) == set(range(400))
        assert pool.statistics().restarts == 1


async def test_a_stuck_decoder_costs_the_file_it_is_at(good: bytes) -> None:
    files = [("cprofile", FileData(good, ()))] * 3
    async with pool_of_one(deadline_seconds=0.5) as pool:
        await pool.decode(files[:1])
        os.kill(child_of(pool).pid, signal.SIGSTOP)
        started = time.monotonic()
        batch = (await pool.decode(files)).batch
        assert time.monotonic() - started < 5
        assert {place: failure.reason for place, failure in batch.failures.items()} == {
            0: "took longer than 0.5 s to decode"
        }
        assert set(batch.row_file.tolist()) == {1, 2}
        assert pool.statistics().timeouts == 1


async def test_a_cancelled_decode_leaves_no_child_with_half_an_answer(good: bytes) -> None:
    files = [("cprofile", FileData(good, ()))] * 2000
    async with pool_of_one() as pool:
        await pool.decode(files[:1])
        with anyio.move_on_after(0.001):
            await pool.decode(files)
        batch = (await pool.decode(files[:2])).batch
        assert set(batch.row_file.tolist()) == {0, 1}


async def test_the_daemon_counts_the_good_and_sets_the_bad_aside(
    good: bytes, tmp_path: Path, short_tmp_path: Path
) -> None:
    names = iter(NAMES)
    bad = hostile_files(good)
    for data in bad.values():
        write_span(node_folder(tmp_path, "0-a"), next(names), data)
        write_span(node_folder(tmp_path, "0-a"), next(names), good)
    sessions = hostile_sessions()
    for data in sessions.values():
        write_span(node_folder(tmp_path, "0-a", "pyinstrument"), next(names), data, "python_stats.json")
    odd = node_folder(tmp_path, "0-a")
    (odd / next(names)).mkdir()
    os.mkfifo(odd / next(names))
    fifo = odd / next(names)
    fifo.mkdir()
    os.mkfifo(fifo / "python_stats")
    (odd / ("x" * 200)).mkdir()
    (odd / "line\nbreak").mkdir()
    settings = settings_for(short_tmp_path, tmp_path, ingest__broken_after_seconds=0.3)
    async with daemon_inside(settings) as (_, client):
        expected = len(bad) + len(sessions) + 2
        status = await until(client, lambda status: sum(status["ingest"]["set_aside"].values()) == expected)
        assert status["profiles"] == len(bad)
        assert status["ingest"]["set_aside"]["refused"] == 1
        assert status["ingest"]["set_aside"]["missing"] == 1
        assert status["decode"]["crashes"] == 0
        nodes = (await client.nodes()).nodes
        assert [(node.node, node.profiler, node.spans) for node in nodes] == [("0-a", "cprofile", len(bad))]
