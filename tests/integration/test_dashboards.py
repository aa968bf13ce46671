"""A real Prometheus with the rules loaded scrapes a real daemon on a run that goes wrong: every expression of every
panel, variable and rule returns data, the alerts name what is wrong, and sums are the socket's. Time runs 200 times as
fast: all lengths of time in rules and panels are divided by that. At the end the Overview is drawn, which makes the
picture in the README."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.expressions import boards, filled_in, panel_expressions
from tests.dashboards.picture import PICTURE_VARIABLE, Window, draw
from tests.integration.daemons import daemon_child, stop
from tests.integration.slowing_run import FORWARD, NODES, SLOW_NODE, SLOWING, slowing_run
from tests.integration.test_prometheus import ask, free_port, prometheus, until_value
from tests.test_prometheus_rules import ALERTS, FOLDER, RECORDED, RULES, rules

FASTER = 200
MILLISECONDS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
DEADLINE_SECONDS = 50.0
PAST = "training_job:phasewatch_step_seconds_past:avg1h"
SCRAPED = "phasewatch_profiles_total"
VALUES = {
    "training_job": "training",
    "profiler": "cprofile",
    "node": ".*",
    "start_mode": ".*",
    "instance": ".*",
    "function": FORWARD,
    "window": "10m",
    "before": "30m",
    "__range": "1h",
    "__rate_interval": "10m",
}
EXPECTED_ALERTS = {
    "PhasewatchWatchdog",
    f'PhasewatchFunctionRegression{{function="{SLOWING}"}}',
    "PhasewatchStepTimeRegression",
    f'PhasewatchStragglerNode{{node="{SLOW_NODE}"}}',
    *(f'PhasewatchDataLoadingBound{{node="{node}"}}' for node in NODES),
}


def faster(text: str) -> str:
    """Divide the lengths of time in an expression or a file of rules."""

    def divided(match: re.Match[str]) -> str:
        return f"{match[1]}{max(int(match[2]) * MILLISECONDS[match[3]] // FASTER, 300)}ms"

    return re.sub(r"(\[|offset |for: |interval: )(\d+)([smh])\b", divided, text)


def expressions() -> dict[str, str]:
    """Return all that is to be asked, by what it is."""
    asked = {f"{it.board}: {it.title}: {it.text}": faster(filled_in(it.text, VALUES)) for it in panel_expressions()}
    return asked | {name: name for name in RECORDED}


def offered(address: str) -> dict[str, list[str]]:
    """Return what the variables of all boards offer, found as Grafana does."""
    result = {}
    for name, board in boards().items():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
                assert query is not None
                where = {"match[]": filled_in(query[1], VALUES)}
                result[f"{name}: {variable['name']}"] = api(address, f"label/{query[2]}/values", **where)
    return result


def test_lengths_of_time_are_divided_and_nothing_else() -> None:
    text = 'rate(x:y:rate10m{a="2h"}[10m] offset 1h) # for: 5m'
    assert faster(text) == 'rate(x:y:rate10m{a="2h"}[3000ms] offset 18000ms) # for: 1500ms'


def api(address: str, path: str, **parameters: str) -> Any:
    """Ask Prometheus's interface; an expression that does not parse raises."""
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.load(response)["data"]


def until(holds: Callable[[], bool], missing: Callable[[], object], deadline: float) -> None:
    """Ask again until something holds: Prometheus scrapes and evaluates when it does."""
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"never seen: {missing()}")
        time.sleep(0.2)


def answered(address: str, left: dict[str, str]) -> bool:
    """Ask what has not been answered yet, and strike out what is now; tells whether nothing is left."""
    for name, text in list(left.items()):
        if api(address, "query", query=text)["result"]:
            del left[name]
    return not left


def firing(address: str) -> Iterator[Mapping[str, str]]:
    """Return the labels of alerts that fire."""
    return (row["metric"] for row in ask(address, 'ALERTS{alertstate="firing"}'))


def seen(address: str, left: set[str]) -> bool:
    """Strike out the alerts that fire; tells whether nothing is left."""
    for labels in firing(address):
        left -= {labels["alertname"]} | {f'{labels["alertname"]}{{{key}="{labels[key]}"}}' for key in labels}
    return not left


@pytest.mark.timeout(120)
def test_every_expression_returns_data_and_alerts_name_what_is_wrong(tmp_path: Path, short_tmp_path: Path) -> None:
    source, listen = tmp_path / "profiles", f"127.0.0.1:{free_port()}"
    settings = short_tmp_path / "c.toml"
    settings.write_text("[metrics]\nfunctions_per_phase = 5\nrefresh_seconds = 0.2\n")
    files = [tmp_path / name for name in (RULES, ALERTS)]
    for file in files:
        file.write_text(faster((FOLDER / file.name).read_text(encoding="utf-8")))
    left, alerts = expressions(), set(EXPECTED_ALERTS)
    with (
        slowing_run(source) as run,
        daemon_child(short_tmp_path, source, "--listen", listen, "-c", str(settings)) as (process, client),
        prometheus(tmp_path / "prometheus", listen, files) as address,
    ):
        deadline = time.monotonic() + DEADLINE_SECONDS
        until(lambda: bool(ask(address, SCRAPED)), lambda: SCRAPED, deadline)
        started = time.time()
        until(lambda: bool(ask(address, PAST)), lambda: PAST, deadline)
        assert not {labels["alertname"] for labels in firing(address)} & {
            "PhasewatchFunctionRegression",
            "PhasewatchStepTimeRegression",
            "PhasewatchDataLoadingBound",
        }
        run.bad.set()
        until(lambda: seen(address, alerts), lambda: alerts, deadline)
        named = {labels["node"] for labels in firing(address) if labels["alertname"] == "PhasewatchStragglerNode"}
        assert named == {SLOW_NODE}
        until(lambda: answered(address, left), lambda: sorted(left), deadline)
        choices = offered(address)
        assert all(choices.values())
        assert FORWARD in choices["functions.json: function"]
        health = {
            rule["name"]: rule.get("lastError", "")
            for group in api(address, "rules")["groups"]
            for rule in group["rules"]
        }
        assert health == dict.fromkeys([*RECORDED, *(rule["alert"] for rule in rules(ALERTS))], "")
        window = Window(
            address=address,
            start=started,
            end=time.time(),
            fill=lambda text: faster(filled_in(text, VALUES)),
            faster=FASTER,
        )
        picture = Path(os.environ.get(PICTURE_VARIABLE, tmp_path / "overview.png"))
        assert all(draw(boards()["overview.json"], window, picture).values())
        assert picture.read_bytes().startswith(b"\x89PNG")
        run.end()
        phases = client.training_phases(fresh=True).phases
        seconds = sum(row.self_seconds for phase in phases for row in phase.functions)
        until_value(address, "sum(phasewatch_function_self_seconds_total)", seconds)
        stop(process)
