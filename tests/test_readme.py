"""The README stays true: every route, setting, metric, exit code and verb is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from monitor import cli
from monitor.api.probes import PROBES
from monitor.api.routes import ROUTES
from monitor.exposition import FUNCTION_FAMILIES, PACKAGE_FAMILIES
from monitor.settings import SETTINGS, SOURCE_SETTINGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "route", [*(route.path for route in ROUTES), "/v1/watch", "/v1/openapi.json", "/metrics", *PROBES]
)
def test_every_route_is_described(route: str) -> None:
    assert f"| `{route}` |" in README


@pytest.mark.parametrize("setting", [*SETTINGS, *(f"source.{key}" for key in SOURCE_SETTINGS)])
def test_every_setting_is_described(setting: str) -> None:
    assert f"| `{setting}` |" in README


MODULES = ("metrics", "phase_metrics", "step_metrics", "status")


def metric_names() -> set[str]:
    """Collect the names that the code gives to metrics."""
    text = "".join((ROOT / "monitor" / f"{name}.py").read_text() for name in MODULES)
    return set(re.findall(r"phasewatch_[a-z_]+", text)) | {
        family.name for family in FUNCTION_FAMILIES + PACKAGE_FAMILIES
    }


@pytest.mark.parametrize("name", sorted(metric_names()))
def test_every_metric_is_described(name: str) -> None:
    prefix = re.fullmatch(r"(phasewatch_(?:ingest|source|decode|store|query|ship)_)(.+)", name)
    if prefix is None:
        assert name in README
    else:
        row = next(line for line in README.splitlines() if line.startswith(f"| `{prefix[1]}…` |"))
        assert re.search(rf"`{prefix[2]}(_total)?(\{{.*?\}})?`", row)


@pytest.mark.parametrize("code", [0, cli.EXIT_REFUSED, cli.EXIT_CONFIG, cli.EXIT_STORE, cli.EXIT_UNWELL])
def test_every_exit_code_is_described(code: int) -> None:
    assert f"\n| {code} | " in README


@pytest.mark.parametrize("verb", [*cli.main.commands, *(name for name, *_ in cli.QUERIES)])
def test_every_verb_is_described(verb: str) -> None:
    assert re.search(rf"phasewatch {verb}|`{verb}`", README)
