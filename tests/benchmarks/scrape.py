"""What a scrape of 20,000 series costs, against the client library that renders them afresh; ratios of one run.

The page and the server are the daemon's own; nothing else of it runs beside them. Both sides write OpenMetrics.
"""

from __future__ import annotations

import gzip
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import aiohttp
import anyio
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from monitor.api.server import open_server
from monitor.budgets import AllBudgets, new_budgets
from monitor.catalog import Catalog, SeriesKey
from monitor.endings import Endings
from monitor.index import Index
from monitor.metrics import MetricsPage, Reading
from monitor.queries import Queries
from monitor.store import open_store
from monitor.watchers import Watchers
from tests.test_index import Recorded, add

NODES = 25
FUNCTIONS = 100
"""With two phases, (other) and four families: 20,200 series, and some hundred more."""
TIMES = 15

Scrape = Callable[[str], Awaitable[bytes]]


class Given(Collector):
    """Hands families to the client library; that they have to be made first is not counted against it."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


def grow(index: Index, budgets: AllBudgets, round_: int) -> None:
    """Add one profile to each phase of each node, in which every function has a share."""
    start, end = 1e6 * round_, 1e6 * round_ + 0.5e6
    rows = [
        (
            (f"/opt/conda/lib/python3.11/site-packages/torch/nn/modules/part_{place}.py", place, "_call_impl"),
            None,
            3 + place,
            3 + place,
            0.0013 * (place + 1),
            0.017 * (place + 1),
        )
        for place in range(FUNCTIONS)
    ]
    add(
        index,
        [
            Recorded(
                SeriesKey(job="resnet50", framework="pytorch", profiler="cprofile", node=f"{node}-algo-{node}"),
                f"train-{round_}-stepstart-{start}_{mode}-{round_}-stepstart-{end}",
                rows,
            )
            for node in range(NODES)
            for mode in ("train", "eval")
        ],
    )
    for each in budgets.each:
        while changes := each.plan(index):
            each.apply(changes)


@asynccontextmanager
async def serving(page: MetricsPage, index: Index) -> AsyncIterator[Scrape]:
    """Serve a page; gives what scrapes it over a connection that stays, as Prometheus does."""

    async def nothing(*_: object) -> bytes:
        return b""

    async def refresh() -> None:
        return None

    def status() -> Mapping[str, object]:
        return {}

    with tempfile.TemporaryDirectory(prefix="pw-") as folder, open_store(None) as store:
        socket = Path(folder, "s.sock")
        queries = Queries(
            index=index,
            store=store,
            watchers=Watchers(most_waiting=1),
            refresh=refresh,
            read=nothing,
            status=status,
            page=page.page,
            jobs=dict,
        )
        async with (
            open_server(
                queries,
                socket=socket,
                socket_mode=0o600,
                listen="",
                listen_api=False,
                max_concurrent=1,
                timeout_seconds=60,
            ),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(socket)), auto_decompress=False) as session,
        ):

            async def scrape(encoding: str) -> bytes:
                headers = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": encoding}
                async with session.get("http://localhost/metrics", headers=headers) as response:
                    return await response.read()

            yield scrape


async def median_seconds(act: Callable[[], Awaitable[object]], before: Callable[[], Awaitable[None]]) -> float:
    """Time something several times, after something that is not timed."""
    taken = []
    for _ in range(TIMES):
        await before()
        started = perf_counter()
        await act()
        taken.append(perf_counter() - started)
    return statistics.median(taken)


async def measure_scrape(say: Callable[[str], None]) -> None:
    """Scrape what has not changed, of which only the daemon's own numbers have, and of which every series has."""
    index, rounds = Index(Catalog()), iter(range(1, 10_000))
    budgets = new_budgets(index.catalog, limit=FUNCTIONS)

    def readings() -> Iterable[Reading]:
        for place in range(100):
            yield Reading(name=f"own_{place}", kind="gauge", help="Changes.", value=perf_counter(), labels={})

    page = MetricsPage(index=index, budgets=budgets, endings=Endings(), readings=readings)

    async def rest() -> None:
        return None

    async def change() -> None:
        grow(index, budgets, next(rounds))

    await change()
    await page.render()
    async with serving(page, index) as scrape:
        text = (await scrape("identity")).decode()
        registry = CollectorRegistry(auto_describe=False)
        families = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
        registry.register(Given(families))
        series = sum(len(family.samples) for family in families)
        say(f"scrape: {series} series, {len(text) / 1e6:.1f} MB, OpenMetrics; rendering afresh with prometheus-client")
        for encoding in ("gzip", "identity"):

            async def theirs() -> bytes:
                rendered: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
                return gzip.compress(rendered) if encoding == "gzip" else rendered  # noqa: B023

            async def ours() -> bytes:
                return await scrape(encoding)  # noqa: B023

            async def drawn() -> bytes:
                await page.render()
                return await scrape(encoding)  # noqa: B023

            rival = await median_seconds(theirs, rest)
            unchanged = await median_seconds(ours, rest)
            own = await median_seconds(ours, page.render)
            changed = await median_seconds(drawn, change)
            say(f"  {encoding}: prometheus-client takes {rival * 1e3:.0f} ms")
            for what, seconds, wanted in (
                ("nothing changed", unchanged, 10),
                ("only the daemon's own numbers changed", own, 10),
                ("every series changed, drawing included", changed, 1),
            ):
                verdict = "within" if rival / seconds >= wanted else "OVER"
                say(
                    f"    {what}: {seconds * 1e3:.1f} ms, {rival / seconds:.1f} times below; {wanted} wanted: {verdict}"
                )


if __name__ == "__main__":
    anyio.run(measure_scrape, print)
