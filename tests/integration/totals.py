"""What a daemon has added up, for comparing it with one clean pass over the same files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.api.schema import TrainingPhasesAnswer
from monitor.client import Client
from monitor.tables import FunctionRow
from tests.integration.daemons import daemon_child, stop

Counters = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def phases(client: Client) -> TrainingPhasesAnswer:
    return client.training_phases(callers=True, fresh=True)


def counters(page: bytes) -> Counters:
    """Read all per-function counters of a metrics page."""
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        if family.name.startswith("phasewatch_function")
        for sample in family.samples
    }


def assert_same(mine: TrainingPhasesAnswer, expected: TrainingPhasesAnswer) -> None:
    """Counts are equal; seconds were added in another order, so they may differ in the last digits."""
    assert len(mine.phases) == len(expected.phases)
    for one, other in zip(mine.phases, expected.phases, strict=True):
        assert (one.start_mode, one.end_mode, one.spans) == (other.start_mode, other.end_mode, other.spans)
        assert_rows(one.functions, other.functions)


def assert_rows(mine: list[FunctionRow], expected: list[FunctionRow]) -> None:
    by_name = {row.key: row for row in expected}
    assert {row.key for row in mine} == by_name.keys()
    for row in mine:
        other = by_name[row.key]
        assert (row.calls, row.primitive_calls) == (other.calls, other.primitive_calls)
        seconds = (row.self_seconds, row.cumulative_seconds)
        assert seconds == pytest.approx((other.self_seconds, other.cumulative_seconds), rel=1e-9)
        assert_rows(row.callers or [], other.callers or [])


def whole_pass(folder: Path, source: Path) -> TrainingPhasesAnswer:
    folder.mkdir()
    with daemon_child(folder, source) as (process, client):
        answer = phases(client)
        stop(process)
    return answer


def wait_for_counters(client: Client) -> None:
    """Wait until the page shows every stored profile."""
    total = sum(phase.spans for phase in client.training_phases().phases)
    for _ in range(1000):
        page = client.raw("/metrics")[1].decode()
        shown = sum(
            float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("phasewatch_profiles_total{")
        )
        if shown == total and "phasewatch_function_self_seconds_total{" in page:
            return
        threading.Event().wait(0.02)  # the page is made anew by itself; there is nothing to wait on from outside
    raise AssertionError("the page never showed all profiles")
