"""Listing a bucket costs what is new: requests are counted while history grows, runs restart and spans come late."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from monitor.s3_url import S3Url
from monitor.sources.base import Cursors, FileRef
from monitor.sources.s3 import S3Source
from monitor.sources.s3_client import open_s3_client
from tests.sources.conformance import Collector, running
from tests.sources.s3_endpoint import SLOW_DOWN, Endpoint, Fault, open_endpoint

NEVER_SECONDS = 3600.0
BASE = "job/profiler-output/framework/pytorch/cprofile"
STEP_US = 1e6

pytestmark = pytest.mark.usefixtures("aws_keys")


class Memory:
    """Cursors that are kept at once, since nothing is behind the collector."""

    def __init__(self) -> None:
        self.text: str | None = None

    async def load(self) -> str | None:
        """Return what was kept."""
        return self.text

    async def keep(self, text: str) -> None:
        """Keep it."""
        self.text = text

    async def settled(self) -> None:
        """Return at once."""

    def is_stored(self, ref: FileRef) -> bool:
        """Say that it is."""
        return True


class Run:
    """One node's training run: three spans a step, one after the other, as the Keras hook writes them."""

    def __init__(self, node: str = "0-a", *, first_us: float = 1.7e15, step_us: float = STEP_US) -> None:
        self.step_us = step_us
        self.node = node
        self.at = first_us
        self.step = 0
        self.mode = "train"

    def begin(self, step: int = 0) -> str:
        """Begin, or begin again: the span before step zero."""
        self.step = step
        return self._span("prestepzero-*-start", f"{self.mode}-{step}-stepstart")

    def spans(self, steps: int, *, stride: int = 1, turn_to: str = "", at_step: int = 0) -> list[str]:
        """Go on; the last span may lead over to another mode."""
        keys: list[str] = []
        for place in range(steps):
            here = f"{self.mode}-{self.step}"
            following = f"{self.mode}-{self.step + stride}"
            if turn_to and place == steps - 1:
                following = f"{turn_to}-{at_step}"
            keys.append(self._span(f"{here}-stepstart", f"{here}-forwardpassend"))
            keys.append(self._span(f"{here}-forwardpassend", f"{here}-stepend"))
            keys.append(self._span(f"{here}-stepend", f"{following}-stepstart"))
            self.step += stride
        if turn_to:
            self.mode, self.step = turn_to, at_step
        return keys

    def _span(self, start: str, end: str) -> str:
        begun, self.at = self.at, self.at + self.step_us / 3
        return f"{BASE}/{self.node}/{start}-{begun}_{end}-{self.at}/python_stats"


@asynccontextmanager
async def followed(endpoint: Endpoint, *, cursors: Cursors | None = None) -> AsyncIterator[tuple[S3Source, Collector]]:
    """Follow the endpoint's bucket; it is polled only when a test asks for it."""
    async with open_s3_client(endpoint.settings) as client:
        source = S3Source(
            client,
            S3Url("bucket", "job/profiler-output/"),
            job="job",
            poll_interval_seconds=NEVER_SECONDS,
            full_scan_seconds=24 * NEVER_SECONDS,
            cursors=cursors,
        )
        async with running(source) as collector:
            yield source, collector


async def poll(source: S3Source, collector: Collector, endpoint: Endpoint) -> tuple[list[str], int]:
    """Poll as the timer does; returns what was named, and how many requests that took."""
    named, requests = len(collector.refs), endpoint.requests["list"]
    await source._look(everything=False)
    return keys_of(collector)[named:], endpoint.requests["list"] - requests


def keys_of(collector: Collector) -> list[str]:
    return [ref.path.removeprefix("s3://bucket/") for ref in collector.refs]


def put(endpoint: Endpoint, keys: list[str]) -> None:
    endpoint.put_many(dict.fromkeys(keys, b"x"))


@pytest.mark.parametrize("steps", [5, 95, 995, 9_995])
async def test_new_spans_are_named_in_a_bounded_number_of_requests_however_long_the_history_is(steps: int) -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, [run.begin(), *run.spans(steps)])
        async with followed(endpoint) as (source, collector):
            assert len(collector.refs) == 3 * steps + 1
            for _ in range(8):  # over the next power of ten
                new = run.spans(1)
                put(endpoint, new)
                named, requests = await poll(source, collector, endpoint)
                assert sorted(named) == sorted(new)
                assert requests <= 10
            assert (await poll(source, collector, endpoint))[0] == []


@pytest.mark.parametrize("stride", [7, 500])
async def test_steps_may_be_skipped(stride: int) -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, [run.begin(), *run.spans(200, stride=stride)])
        async with followed(endpoint) as (source, collector):
            for _ in range(30):
                new = run.spans(1, stride=stride)
                put(endpoint, new)
                named, requests = await poll(source, collector, endpoint)
                assert sorted(named) == sorted(new)
                assert requests <= 12


async def test_a_change_of_mode_a_new_mode_and_a_step_that_begins_anew_are_found_at_once() -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, [run.begin(), *run.spans(300)])
        async with followed(endpoint) as (source, collector):
            for mode, step in (("eval", 0), ("train", 301), ("eval", 0), ("predict", 7), ("train", 330)):
                new = run.spans(3, turn_to=mode, at_step=step)
                put(endpoint, new)
                assert sorted((await poll(source, collector, endpoint))[0]) == sorted(new)
                new = run.spans(5)
                put(endpoint, new)
                assert sorted((await poll(source, collector, endpoint))[0]) == sorted(new)


@pytest.mark.parametrize("step", [0, 37, 900, 2_990])
async def test_a_run_that_begins_again_at_a_lower_step_is_followed(step: int) -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, [run.begin(), *run.spans(3_000)])
        async with followed(endpoint) as (source, collector):
            run.at += 60e6
            new = [run.begin(step), *run.spans(2)]
            put(endpoint, new)
            named: list[str] = []
            for _ in range(4):  # the place before step zero is not among the busy ones, and has its turn
                named += (await poll(source, collector, endpoint))[0]
            assert sorted(named) == sorted(new)
            for _ in range(5):
                new = run.spans(2)
                put(endpoint, new)
                named, requests = await poll(source, collector, endpoint)
                assert sorted(named) == sorted(new)
                assert requests <= 20


async def test_spans_that_come_minutes_late_and_out_of_order_are_found() -> None:
    chance = random.Random(5)
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, [run.begin(), *run.spans(1_200)])
        held: list[str] = []
        async with followed(endpoint) as (source, collector):
            named: list[str] = []
            before = len(collector.refs)
            for _ in range(60):
                held += run.spans(3)
                chance.shuffle(held)
                put(endpoint, held[100:])  # about 11 steps' worth is always still under way
                held = held[:100]
                named += (await poll(source, collector, endpoint))[0]
            put(endpoint, held)
            named += (await poll(source, collector, endpoint))[0]
            assert sorted(keys_of(collector)) == sorted(endpoint.objects)
            assert len(named) == len(collector.refs) - before == 540


async def test_new_nodes_and_frameworks_are_found_at_once() -> None:
    async with open_endpoint() as endpoint:
        first = Run("0-a")
        put(endpoint, [first.begin(), *first.spans(50)])
        async with followed(endpoint) as (source, collector):
            second = Run("1-b")
            put(endpoint, second.spans(4))
            assert len((await poll(source, collector, endpoint))[0]) == 12
            other = [key.replace("pytorch/cprofile", "tensorflow/pyinstrument") + ".json" for key in second.spans(2)]
            put(endpoint, other)
            assert sorted((await poll(source, collector, endpoint))[0]) == sorted(other)


async def test_a_new_node_whose_listing_fails_midway_is_taken_whole_at_the_next_look() -> None:
    async with open_endpoint() as endpoint:
        first, second = Run("0-a"), Run("1-b")
        put(endpoint, [first.begin(), *first.spans(20)])
        async with followed(endpoint) as (source, collector):
            new = second.spans(1_000)
            put(endpoint, new)
            sent = endpoint.requests["list"]
            endpoint.judge = lambda operation, key: SLOW_DOWN if endpoint.requests["list"] > sent + 5 else None
            some = (await poll(source, collector, endpoint))[0]
            assert not source.statistics().available
            assert len(some) < len(new)
            endpoint.judge = lambda operation, key: None
            rest = (await poll(source, collector, endpoint))[0]
            assert set(some) | set(rest) == set(new)


async def test_a_node_that_holds_no_span_at_first_is_followed() -> None:
    async with open_endpoint() as endpoint:
        first, second = Run("0-a"), Run("1-b")
        put(endpoint, [first.begin(), *first.spans(20)])
        async with followed(endpoint) as (source, collector):
            put(endpoint, [f"{BASE}/1-b/"])  # as tools leave it that make folders
            assert (await poll(source, collector, endpoint))[0] == []
            new = second.spans(2)
            put(endpoint, new)
            assert sorted((await poll(source, collector, endpoint))[0]) == sorted(new)


async def test_the_older_layout_is_followed_by_time() -> None:
    async with open_endpoint() as endpoint:
        names = [f"{1.5e15 + step * 1e6!r}_{1.5e15 + step * 1e6 + 5e5!r}_{step % 2}-a_{step}" for step in range(3_000)]
        keys = [f"job/profiler-output/framework/tensorflow/cProfile/{name}/python_stats" for name in names]
        put(endpoint, keys[:-10])
        async with followed(endpoint) as (source, collector):
            assert sorted(keys_of(collector)) == sorted(keys[:-10])
            put(endpoint, keys[-10:])
            named, requests = await poll(source, collector, endpoint)
            assert sorted(named) == sorted(keys[-10:])
            assert requests <= 6


async def test_a_restart_lists_no_history_again_and_finds_what_came_meanwhile() -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, [run.begin(), *run.spans(9_000)])
        memory = Memory()
        async with followed(endpoint) as (source, _):
            await memory.keep(source._finder.dump())
        new = run.spans(1_500)  # over a power of ten, and more than a page
        put(endpoint, new)
        before = endpoint.requests["list"]
        async with followed(endpoint, cursors=memory) as (source, collector):
            assert set(keys_of(collector)) >= set(new)
            assert endpoint.requests["list"] - before <= 20
            assert (await poll(source, collector, endpoint))[0] == []


async def test_a_first_pass_that_is_interrupted_goes_on_where_it_was() -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, run.spans(2_000))
        memory = Memory()
        endpoint.judge = lambda operation, key: SLOW_DOWN if endpoint.requests["list"] > 6 else None
        async with followed(endpoint) as (source, collector):
            assert not source.statistics().available
            some = len(collector.refs)
            assert 1_000 <= some < 6_000
            await memory.keep(source._finder.dump())
        endpoint.judge = lambda operation, key: None
        async with followed(endpoint, cursors=memory) as (source, again):
            assert len(again.refs) == 6_000 - some
            assert not {ref.path for ref in again.refs} & {ref.path for ref in collector.refs}


async def test_a_span_that_a_listing_leaves_out_for_a_while_is_found_later() -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, [run.begin(), *run.spans(100)])
        async with followed(endpoint) as (source, collector):
            new = run.spans(10)
            endpoint.hidden = set(new[::2])
            put(endpoint, new)
            assert len((await poll(source, collector, endpoint))[0]) == 15
            endpoint.hidden = set()
            assert len((await poll(source, collector, endpoint))[0]) == 15
            assert sorted(keys_of(collector)) == sorted(endpoint.objects)


async def test_what_windows_cannot_see_is_found_by_the_full_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    keys = run.spans(4_000)
    late = keys[600:603]
    clock = [1.8e9]
    monkeypatch.setattr("monitor.sources.s3_finder.wall_clock", lambda: clock[0])
    async with open_endpoint() as endpoint:
        put(endpoint, [key for key in keys if key not in late])
        async with followed(endpoint) as (source, collector):
            put(endpoint, late)
            assert (await poll(source, collector, endpoint))[0] == []
            pages: list[int] = []
            named: list[str] = []
            clock[0] += 24 * NEVER_SECONDS
            for _ in range(30):
                got, requests = await poll(source, collector, endpoint)
                named += got
                pages.append(requests)
                clock[0] += 24 * NEVER_SECONDS / 25
            assert set(late) <= set(named)
            assert max(pages) <= 10
            assert math.isclose(sum(pages) / len(pages), 6, abs_tol=3)


async def test_a_listing_that_fails_is_tried_again_and_counted() -> None:
    run = Run()
    async with open_endpoint() as endpoint:
        put(endpoint, run.spans(10))
        faults = iter([SLOW_DOWN, Fault(reset=True), Fault(code="InternalError", status=500)])
        endpoint.judge = lambda operation, key: next(faults, None)
        async with followed(endpoint) as (source, collector):
            assert len(collector.refs) == 30
            assert source.statistics().available
