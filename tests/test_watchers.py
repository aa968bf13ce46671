"""Watchers: each reader has events of its own; a slow one loses the oldest, is told how many, and holds up nobody."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from monitor.answers import Dropped, SpanRow, WatchEvent
from monitor.spans import parse_span_name
from monitor.watchers import Subscription, Watchers, WatchStatistics

DEADLINE_SECONDS = 10.0


def rows(first: int, last: int) -> list[SpanRow]:
    """The spans of some steps."""
    names = [f"train-{step}-stepstart-1{step:06}.0_train-{step}-stepend-2{step:06}.0" for step in range(first, last)]
    return [
        SpanRow(
            job="training",
            framework="pytorch",
            profiler="cprofile",
            node="0-a",
            name=name,
            span=parse_span_name(name),
            path=f"/base/{name}/python_stats",
        )
        for name in names
    ]


async def taken(reader: Subscription, count: int) -> list[WatchEvent]:
    """Take so many events."""
    with anyio.fail_after(DEADLINE_SECONDS):
        return [await anext(reader) for _ in range(count)]


async def test_a_reader_gets_what_is_published_in_order() -> None:
    watchers = Watchers(most_waiting=10)
    with watchers.subscribe() as reader:
        watchers.publish(rows(0, 2))
        watchers.publish(rows(2, 3))
        assert await taken(reader, 3) == rows(0, 3)


async def test_a_reader_that_waits_is_woken() -> None:
    watchers = Watchers(most_waiting=10)
    got: list[WatchEvent] = []

    async def read(reader: Subscription) -> None:
        got.extend(await taken(reader, 2))

    with watchers.subscribe() as reader:
        async with anyio.create_task_group() as group:
            group.start_soon(read, reader)
            await anyio.wait_all_tasks_blocked()
            watchers.publish(rows(0, 1))
            await anyio.wait_all_tasks_blocked()
            watchers.publish(rows(1, 2))
    assert got == rows(0, 2)


async def test_what_was_published_before_is_not_told() -> None:
    watchers = Watchers(most_waiting=10)
    watchers.publish(rows(0, 5))
    with watchers.subscribe() as reader:
        watchers.publish(rows(5, 6))
        assert await taken(reader, 1) == rows(5, 6)


@pytest.mark.parametrize("bundles", [[(0, 8)], [(0, 3), (3, 8)], [(step, step + 1) for step in range(8)]])
async def test_a_slow_reader_loses_the_oldest_and_is_told_first(bundles: Sequence[tuple[int, int]]) -> None:
    watchers = Watchers(most_waiting=3)
    with watchers.subscribe() as reader:
        for first, last in bundles:
            watchers.publish(rows(first, last))
        assert await taken(reader, 4) == [Dropped(count=5), *rows(5, 8)]


async def test_each_loss_is_told_once_where_it_happened() -> None:
    watchers = Watchers(most_waiting=2)
    with watchers.subscribe() as reader:
        watchers.publish(rows(0, 3))
        assert await taken(reader, 2) == [Dropped(count=1), *rows(1, 2)]
        watchers.publish(rows(3, 5))
        assert await taken(reader, 3) == [Dropped(count=1), *rows(3, 5)]
        watchers.publish(rows(5, 6))
        assert await taken(reader, 1) == rows(5, 6)


async def test_exactly_as_many_as_may_wait_are_kept() -> None:
    watchers = Watchers(most_waiting=3)
    with watchers.subscribe() as reader:
        watchers.publish(rows(0, 3))
        assert watchers.statistics() == WatchStatistics(readers=1, dropped=0)
        assert await taken(reader, 3) == rows(0, 3)


async def test_a_slow_reader_costs_a_fast_one_nothing() -> None:
    watchers = Watchers(most_waiting=2)
    with watchers.subscribe() as slow, watchers.subscribe() as fast:
        for step in range(20):
            watchers.publish(rows(step, step + 1))
            assert await taken(fast, 1) == rows(step, step + 1)
        assert await taken(slow, 3) == [Dropped(count=18), *rows(18, 20)]
        assert watchers.statistics() == WatchStatistics(readers=2, dropped=18)


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    watchers = Watchers(most_waiting=10)
    with watchers.subscribe() as reader:
        for step in range(50):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(taken, reader, 1)
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
            watchers.publish(rows(step, step + 1))
            assert await taken(reader, 1) == rows(step, step + 1)


async def test_a_reader_that_leaves_is_forgotten_even_in_an_error() -> None:
    watchers = Watchers(most_waiting=1)
    assert not watchers

    def fail() -> None:
        with watchers.subscribe():
            assert watchers
            raise RuntimeError("the reader fails")

    with pytest.raises(RuntimeError, match="the reader fails"):
        fail()
    assert not watchers
    watchers.publish(rows(0, 5))
    assert watchers.statistics() == WatchStatistics(readers=0, dropped=0)


async def test_losses_of_readers_that_left_stay_counted() -> None:
    watchers = Watchers(most_waiting=1)
    for _ in range(2):
        with watchers.subscribe():
            watchers.publish(rows(0, 4))
    assert watchers.statistics() == WatchStatistics(readers=0, dropped=6)


async def test_a_reader_is_an_iterator_of_its_events() -> None:
    watchers = Watchers(most_waiting=5)
    got: list[WatchEvent] = []
    with watchers.subscribe() as reader:
        watchers.publish(rows(0, 3))
        with anyio.fail_after(DEADLINE_SECONDS):
            async for event in reader:
                got.append(event)
                if len(got) == 3:
                    break
    assert got == rows(0, 3)
