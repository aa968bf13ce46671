"""The dashboards are what their source makes, ask only for what exists, and are provisioned from where they lie."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.dashboards.expressions import Expression, boards, panel_expressions
from tests.dashboards.rendering import BOARDS, FOLDER, rendered
from tests.test_prometheus_rules import RECORDED, ROOT, exposed_names

BUILT_IN = {"__range", "__rate_interval"}
DRILLED_INTO = "/d/phasewatch-functions?"


def configuration(name: str) -> Any:
    return yaml.safe_load((ROOT / "config" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", BOARDS)
def test_the_file_is_what_its_source_makes(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == rendered()[name], "run python -m tests.dashboards"


def test_no_file_is_left_over() -> None:
    assert set(boards()) == set(BOARDS)


def test_boards_and_panels_can_be_told_apart() -> None:
    assert len({board["uid"] for board in boards().values()}) == len(BOARDS)
    for board in boards().values():
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        assert all(panel["title"] and panel["description"] for panel in board["panels"])


def test_no_panel_lies_on_another() -> None:
    for name, board in boards().items():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, (name, panel["title"])
            assert max(x for x, _ in cells) < 24
            taken |= cells


@pytest.mark.parametrize("expression", list(panel_expressions()), ids=lambda it: f"{it.board}: {it.title}")
def test_panels_ask_only_for_what_exists(expression: Expression) -> None:
    asked = set(re.findall(r"[a-z_]*:?phasewatch_[a-z_]+(?::[a-z0-9_]+)?", expression.text))
    assert asked <= RECORDED | exposed_names()
    variables = {variable["name"] for variable in boards()[expression.board]["templating"]["list"]}
    assert set(re.findall(r"\$(\w+)", expression.text)) <= variables | BUILT_IN


def test_every_variable_is_used() -> None:
    for name, board in boards().items():
        texts = [e.text for e in panel_expressions() if e.board == name]
        texts += [str(variable.get("query")) for variable in board["templating"]["list"]] + ["${datasource}"]
        for variable in board["templating"]["list"]:
            assert any(re.search(rf"\$\{{?{variable['name']}\b", text) for text in texts), (name, variable["name"])


def test_functions_lead_to_the_board_about_them() -> None:
    leading = [
        place["value"][0]["url"]
        for board in boards().values()
        for panel in board["panels"]
        for override in panel["fieldConfig"].get("overrides", ())
        for place in override["properties"]
        if place["id"] == "links"
    ]
    assert len(leading) == 2
    assert all(url.startswith(DRILLED_INTO) and "var-function=" in url for url in leading)
    assert boards()["functions.json"]["uid"] in DRILLED_INTO


def test_provisioning_and_compose_fit_together() -> None:
    services = configuration("compose.yml")["services"]
    mounts = [volume.split(":")[:2] for volume in services["grafana"]["volumes"] + services["prometheus"]["volumes"]]
    inside = {target: source for source, target in mounts if source.startswith("./")}
    assert all((ROOT / "config" / source).is_dir() for source in inside.values())
    (provider,) = configuration("grafana/provisioning/dashboards/phasewatch.yml")["providers"]
    assert (ROOT / "config" / inside[provider["options"]["path"]]).resolve() == FOLDER.resolve()
    (source,) = configuration("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == f"http://{services['prometheus']['network_mode'].partition(':')[2]}:9090"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (FOLDER / home.rpartition("/")[2]).is_file()
