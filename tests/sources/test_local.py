"""The local folder as a source: the rules that all sources keep, and what only a file system can do."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from monitor.sources.base import FileRef
from monitor.sources.local import LocalSource
from tests.sources.conformance import (
    DEADLINE_SECONDS,
    NODE,
    RULES,
    MemoryPlace,
    Place,
    Rule,
    contents,
    put_span,
    running,
)

NEVER_SECONDS = 3600.0
SOON_SECONDS = 0.02


class LocalPlace:
    """A folder and the source that follows it; it polls only when it is asked to."""

    def __init__(self, root: Path, *, events: bool) -> None:
        self._root = root
        self.source = LocalSource(root, job="job", poll_interval_seconds=NEVER_SECONDS, events=events)

    def put(self, step: int, data: bytes, *, node: str = NODE) -> None:
        """Make a span."""
        put_span(self._root / node, step, data)

    def empty(self, step: int) -> None:
        """Remove a span's file."""
        put_span(self._root / NODE, step, None).unlink()

    def remove(self, step: int, *, node: str = NODE) -> None:
        """Remove a span."""
        shutil.rmtree(put_span(self._root / node, step).parent)


PLACES: dict[str, Callable[[Path], Place]] = {
    "local": lambda root: LocalPlace(root, events=True),
    "local without events": lambda root: LocalPlace(root, events=False),
    "memory": lambda root: MemoryPlace(),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("kind", PLACES)
async def test_a_source(kind: str, rule: Rule, tmp_path: Path) -> None:
    await rule(PLACES[kind](tmp_path))


@pytest.mark.parametrize("events", [True, False])
async def test_a_span_is_named_before_its_file_is_there(events: bool, tmp_path: Path) -> None:
    source = LocalSource(tmp_path, job="job", poll_interval_seconds=NEVER_SECONDS, events=events)
    async with running(source) as collector:
        put_span(tmp_path / NODE, 1, None)
        await source.poll()
        assert collector.steps() == [1]
        assert await source.versions(collector.refs) == [()]


@pytest.mark.parametrize("events", [True, False])
async def test_two_thousand_spans_that_appear_while_polling_are_each_named_once(events: bool, tmp_path: Path) -> None:
    nodes = [tmp_path / "framework/pytorch/cprofile" / f"{rank}-a" for rank in range(4)]
    source = LocalSource(tmp_path, job="job", poll_interval_seconds=SOON_SECONDS, events=events)

    def write() -> None:
        for step in range(2_000):
            put_span(nodes[step % 4], step, None)

    async with running(source) as collector:
        await anyio.to_thread.run_sync(write)
        await collector.wait_for(2_000)
        await source.poll()
        assert collector.steps() == list(range(2_000))


async def test_a_base_folder_that_comes_later_is_found_by_polling(tmp_path: Path) -> None:
    base = tmp_path / "not" / "yet"
    source = LocalSource(base, job="job", poll_interval_seconds=SOON_SECONDS, events=False)
    async with running(source) as collector:
        assert not source.statistics().available
        put_span(base / NODE, 1)
        await collector.wait_for(1)
        await source.poll()
        assert source.statistics().available


async def test_events_name_a_span_long_before_the_next_poll(tmp_path: Path) -> None:
    node = tmp_path / NODE
    node.mkdir(parents=True)
    source = LocalSource(tmp_path, job="job", poll_interval_seconds=NEVER_SECONDS)
    async with running(source) as collector:
        step = 0
        with anyio.fail_after(DEADLINE_SECONDS):
            while not collector.refs:  # the watch begins in a thread of its own: offer it spans until it sees one
                step += 1
                put_span(node, step)
                with anyio.move_on_after(0.1):
                    await collector.wait_for(1)
        assert source.statistics().events_active
        assert source.statistics().events > 0


async def test_without_events_watchfiles_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "watchfiles", None)
    put_span(tmp_path / NODE, 1)
    source = LocalSource(tmp_path, job="job", events=False)
    async with running(source) as collector:
        assert collector.steps() == [1]
        assert not source.statistics().events_active


@pytest.mark.parametrize("events", [True, False])
async def test_stopping_takes_no_time(events: bool, tmp_path: Path) -> None:
    put_span(tmp_path / NODE, 1)
    source = LocalSource(tmp_path, job="job", poll_interval_seconds=SOON_SECONDS, events=events)
    async with running(source):
        asked = anyio.current_time()
    assert anyio.current_time() - asked < 0.5


async def test_only_plain_files_are_read(tmp_path: Path) -> None:
    base, outside = tmp_path / "base", tmp_path / "outside"
    outside.write_bytes(b"secret")
    os.mkfifo(put_span(base / NODE, 1, None))
    put_span(base / NODE, 2, None).symlink_to(outside)
    put_span(base / NODE, 3, None).mkdir()
    source = LocalSource(base, job="job", events=False)
    async with running(source) as collector:
        refs = sorted(collector.refs, key=lambda ref: ref.span.start_step)
        answers = await source.read(refs, max_bytes=100)
        with anyio.fail_after(DEADLINE_SECONDS):
            kinds = [await anyio.to_thread.run_sync(contents, answer) for answer in answers]
        assert kinds == ["refused", "refused", "refused"]


async def test_a_poll_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    node = tmp_path / NODE
    node.mkdir(parents=True)
    source = LocalSource(tmp_path, job="job", poll_interval_seconds=NEVER_SECONDS, events=False)
    taken: list[int] = []
    full, entered = anyio.Event(), anyio.Event()

    async def accept(refs: Sequence[FileRef]) -> None:
        entered.set()
        await full.wait()
        taken.extend(ref.span.start_step for ref in refs)

    async with anyio.create_task_group() as group:
        await group.start(source.run, accept)
        put_span(node, 1)
        asked = asyncio.ensure_future(source.poll())
        with anyio.fail_after(DEADLINE_SECONDS):
            await entered.wait()
            asked.cancel()
            await asyncio.wait([asked])
            full.set()
            await source.poll()
        assert taken == [1]
        group.cancel_scope.cancel()


async def test_a_poll_asked_for_before_the_start_is_answered(tmp_path: Path) -> None:
    put_span(tmp_path / NODE, 1)
    source = LocalSource(tmp_path, job="job", poll_interval_seconds=NEVER_SECONDS, events=False)
    async with anyio.create_task_group() as group:
        group.start_soon(source.poll)
        async with running(source) as collector:
            await source.poll()
            assert collector.steps() == [1]
