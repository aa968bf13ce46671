"""The metrics page over time: the same samples in both formats, drawn again only where something has changed."""

from __future__ import annotations

import gzip
import math
import threading
from collections.abc import Iterable

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.registry import Collector, CollectorRegistry

from monitor import metrics
from monitor.answers import PageWish
from monitor.budgets import new_budgets
from monitor.catalog import Catalog, SeriesKey
from monitor.endings import Endings
from monitor.index import Index
from monitor.metrics import MetricsPage, Reading
from tests.test_index import A, B, Recorded, add

HARD = 'a "quoted" \\ back\\nslash\nline\rreturn é漢\x85 '
NAMES = [f"train-{step}-stepstart-{step}000000.0_train-{step}-stepend-{step}500000.0" for step in range(1, 9)]
CLOSING = "train-9-stepend-9500000.0_posthookclose-*-end-9900000.0"


def who(job: str, node: str = "0-a") -> SeriesKey:
    return SeriesKey(job=job, framework="pytorch", profiler="cprofile", node=node)


def recorded(job: str, name: str, node: str = "0-a") -> Recorded:
    hard = ("/app/hard.py", 3, HARD)
    rows = [(A, None, 2, 1, 0.5, 1.25), (B, None, 1, 1, 1e-05, 2.0), (hard, None, 10**9, 1, 0.1, 0.1)]
    return Recorded(who(job, node), name, rows)


class Run:
    """A page over an index that grows; time is said."""

    def __init__(self, *jobs: str) -> None:
        self.now = 1000.0
        self.lag = 0.0
        self.facts: dict[int, dict[str, object]] = {}
        self.index = Index(Catalog())
        self.budgets = new_budgets(self.index.catalog, limit=2)
        self.endings = Endings(keep_ended_seconds=10, keep_silent_seconds=100)
        self.page = MetricsPage(
            index=self.index,
            budgets=self.budgets,
            endings=self.endings,
            readings=self.readings,
            facts=lambda: self.facts,
            wall_clock=lambda: self.now,
        )
        self.grow(*(recorded(job, NAMES[0]) for job in jobs))

    def readings(self) -> Iterable[Reading]:
        yield Reading(name="phasewatch_lag_seconds", kind="gauge", help="Age.", value=self.lag, labels={})
        for kind in ("a", HARD):
            yield Reading(name="phasewatch_n", kind="counter", help='"n" \\.', value=1.0, labels={"kind": kind})

    def grow(self, *spans: Recorded) -> None:
        add(self.index, spans)
        for budgets in self.budgets.each:
            while changes := budgets.plan(self.index):
                budgets.apply(changes)

    async def text(self, **wish: object) -> str:
        page = await self.page.page(PageWish(**wish))  # type: ignore[arg-type]
        assert page is not None
        return (gzip.decompress(page) if wish.get("gzip") else page).decode()


def samples(families: Iterable[Metric]) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    found = [
        (sample.name, frozenset(sample.labels.items()), sample.value) for each in families for sample in each.samples
    ]
    assert len(found) == len(set(found))
    return set(found)


async def test_there_is_no_page_before_the_first_one() -> None:
    assert await Run("one").page.page(PageWish()) is None


async def test_both_formats_hold_the_same_samples_as_the_client_library_writes() -> None:
    run = Run("one", HARD)
    await run.page.render()
    plain, openmetrics = await run.text(), await run.text(openmetrics=True)
    families = list(parse_openmetrics(openmetrics))  # type: ignore[no-untyped-call]
    assert samples(parse_plain(plain)) == samples(families)
    labels = {labels["training_job"] for _, pairs, _ in samples(families) if "training_job" in (labels := dict(pairs))}
    assert labels == {"one", HARD}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given(families))
    theirs = generate_latest(registry).decode()
    assert samples(parse_plain(theirs)) == samples(parse_plain(plain))
    heads = [{line for line in text.split("\n") if line.startswith("# ")} for text in (theirs, plain)]
    assert heads[0] == heads[1]


class Given(Collector):
    """Hands families to a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


async def test_openmetrics_names_counters_without_total_and_ends() -> None:
    run = Run("one")
    await run.page.render()
    text = await run.text(openmetrics=True)
    assert "# TYPE phasewatch_function_calls counter\n" in text
    assert "# TYPE phasewatch_n counter\n" in text
    assert '# HELP phasewatch_n \\"n\\" \\\\.\n' in text
    assert "_total counter" not in text
    assert "_created" not in text
    assert text.endswith("\n# EOF\n")
    assert text.count("# EOF") == 1


async def test_compressed_pages_are_the_same_pages() -> None:
    run = Run(*(f"job-{number}" for number in range(20)))
    await run.page.render()
    for openmetrics in (False, True):
        assert await run.text(gzip=True, openmetrics=openmetrics) == await run.text(openmetrics=openmetrics)


async def test_a_job_has_its_own_samples_and_the_daemon_the_rest() -> None:
    run = Run("one", "two")
    await run.page.render()
    whole, one, two = [samples(parse_plain(await run.text(job=job))) for job in (None, "one", "two")]
    daemon = samples(parse_plain(await run.text(daemon=True)))
    assert whole == one | two | daemon
    assert len(whole) == len(one) + len(two) + len(daemon)
    assert {dict(labels)["training_job"] for _, labels, _ in one} == {"one"}
    assert "phasewatch_build_info" in {name for name, _, _ in daemon}
    assert "process_cpu_seconds_total" in {name for name, _, _ in daemon}


async def test_a_page_is_kept_until_something_of_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("one", "two")
    await run.page.render()
    first = {job: await run.page.page(PageWish(job=job, gzip=True)) for job in ("one", "two", None)}
    run.lag = 1.0
    await run.page.render()
    assert await run.page.page(PageWish(job="one", gzip=True)) is first["one"]
    assert await run.page.page(PageWish(gzip=True)) != first[None]
    run.grow(recorded("two", NAMES[1]))
    await run.page.render()
    assert await run.page.page(PageWish(job="one", gzip=True)) is first["one"]
    assert await run.page.page(PageWish(job="two", gzip=True)) != first["two"]
    monkeypatch.setattr("monitor.metrics.KEPT_PAGES_BYTES", 10)
    await run.page.page(PageWish(job="two", gzip=True))
    again = await run.page.page(PageWish(job="one", gzip=True))
    assert again == first["one"]
    assert again is not first["one"]  # kept no longer: there was no room


async def test_nothing_is_drawn_or_put_together_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noted(name: str) -> None:
        real = getattr(metrics, name)

        def call(*arguments: object, **words: object) -> object:
            threads.append(threading.get_ident())
            return real(*arguments, **words)

        monkeypatch.setattr(metrics, name, call)

    for name in ("lines_by", "group_lines", "page_of"):
        noted(name)
    run = Run("one")
    await run.page.render()
    await run.text(gzip=True, names=frozenset({"phasewatch_span_seconds_count"}))
    assert len(threads) > 2
    assert threading.get_ident() not in threads


async def test_series_of_an_ended_job_go_and_come_back_with_the_true_totals() -> None:
    run = Run("one", "two")
    run.grow(recorded("one", CLOSING))
    await run.page.render()
    before = samples(parse_plain(await run.text(job="one")))
    run.now += 10
    await run.page.render()
    assert await run.text(job="one") == ""
    assert 'training_job="one"' not in await run.text()
    assert 'training_job="two"' in await run.text()
    assert run.page.sheet is not None
    assert run.page.sheet.ended == {"one"}
    run.grow(recorded("one", NAMES[3], node="1-b"))
    await run.page.render()
    after = samples(parse_plain(await run.text(job="one")))
    gone = {sample[:2] for sample in before} - {sample[:2] for sample in after}
    assert not gone
    calls = [value for name, _, value in after if name == "phasewatch_function_calls_total"]
    assert sum(calls) == 3 * (3 + 10**9)


async def test_what_the_daemon_no_longer_tells_is_not_shown() -> None:
    run = Run("one")
    await run.page.render()
    run.readings = lambda: ()  # type: ignore[method-assign]
    run.page._readings = run.readings
    await run.page.render()
    assert "phasewatch_lag_seconds" not in await run.text()


async def test_what_capture_costs_is_shown_where_a_node_says_it_and_nonsense_is_not() -> None:
    run = Run("one", "two")
    run.grow(recorded("one", NAMES[1], node="1-b"), recorded("one", NAMES[1], node="2-c"))
    run.facts = {0: {"overhead_ratio": 0.02}, 1: {"pid": 7}, 2: {"overhead_ratio": math.nan}, 3: {"overhead_ratio": -1}}
    await run.page.render()
    lines = [line for line in (await run.text()).splitlines() if line.startswith("phasewatch_capture_overhead_ratio{")]
    assert len(lines) == 1
    assert 'node="0-a"' in lines[0]
    assert 'training_job="one"' in lines[0]
    assert lines[0].endswith(" 0.02")
