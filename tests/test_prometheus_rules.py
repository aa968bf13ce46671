"""The rules for Prometheus: promtool has nothing to say, every alert is tested both ways and stands in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_readme import metric_names

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "config" / "prometheus"
RULES, ALERTS, TESTS = "recording.rules.yml", "alerts.rules.yml", "alerts.test.yml"


def document(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    """List the rules of all groups of a file."""
    return [rule for group in document(name)["groups"] for rule in group["rules"]]


def alert_tests(name: str) -> list[dict[str, Any]]:
    """List the tests of one alert."""
    tests = [test for each in document(TESTS)["tests"] for test in each["alert_rule_test"]]
    return [test for test in tests if test["alertname"] == name]


WATCHDOG = "PhasewatchWatchdog"
"""Fires always: it is missed where it does not."""
ALERT_NAMES = [rule["alert"] for rule in rules(ALERTS)]
RECORDED = {rule["record"] for rule in rules(RULES)}


def promtool(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run promtool; gives its exit code and all it said."""
    program = shutil.which("promtool")
    assert program is not None, "promtool is missing: apt-get install -y prometheus"
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "--lint=all", "--lint-fatal", RULES, ALERTS),
        ("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml"),
        ("test", "rules", TESTS),
    ],
)
def test_promtool_has_nothing_to_say(arguments: tuple[str, ...]) -> None:
    code, said = promtool(FOLDER, *arguments)
    assert code == 0, said


def test_the_scrape_configuration_loads_both_files_of_rules() -> None:
    assert document("prometheus.yml")["rule_files"] == [RULES, ALERTS]


@pytest.mark.parametrize("name", ALERT_NAMES)
def test_every_alert_is_seen_firing_and_not_firing(name: str) -> None:
    assert {bool(test["exp_alerts"]) for test in alert_tests(name)} == ({True} if name == WATCHDOG else {True, False})


@pytest.mark.parametrize("name", ALERT_NAMES)
def test_an_alert_that_never_fires_is_noticed(name: str, tmp_path: Path) -> None:
    for file in (RULES, TESTS):
        shutil.copy(FOLDER / file, tmp_path)
    changed = document(ALERTS)
    tests = document(TESTS)
    tests["tests"] = [each for each in tests["tests"] if any(t["alertname"] == name for t in each["alert_rule_test"])]
    (rule,) = (rule for group in changed["groups"] for rule in group["rules"] if rule["alert"] == name)
    rule["expr"] = "vector(1) > 1"
    (tmp_path / ALERTS).write_text(yaml.safe_dump(changed))
    (tmp_path / TESTS).write_text(yaml.safe_dump(tests))
    code, said = promtool(tmp_path, "test", "rules", TESTS)
    assert code == 1, said
    assert name in said


@pytest.mark.parametrize("rule", rules(ALERTS), ids=ALERT_NAMES)
def test_every_alert_says_what_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Phasewatch(?:[A-Z][a-z]+)+", rule["alert"])
    assert rule["labels"]["severity"] in ({"none"} if rule["alert"] == WATCHDOG else {"critical", "warning", "info"})
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}
    assert anchor == rule["alert"].lower()


@pytest.mark.parametrize("name", ALERT_NAMES)
def test_every_alert_is_described(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| .*`(?:{name}|…{name.removeprefix('Phasewatch')})`.* \| ", readme, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_recorded_names_say_level_metric_and_operations(name: str) -> None:
    assert re.fullmatch(
        r"(training_job|node|part|node_part|package|function):phasewatch_[a-z_]+:[a-z]+(_?[a-z0-9]+)*", name
    )
    assert "_total:" not in name


@pytest.mark.parametrize("rule", rules(RULES) + rules(ALERTS), ids=lambda rule: rule.get("record") or rule["alert"])
def test_rules_ask_only_for_what_exists(rule: dict[str, Any]) -> None:
    asked = set(re.findall(r"[a-z_]*:?phasewatch_[a-z_]+(?::[a-z0-9_]+)?", rule["expr"]))
    assert asked or rule["alert"] in {"PhasewatchDaemonDown", WATCHDOG}
    known = RECORDED | exposed_names()
    assert asked <= known


def exposed_names() -> set[str]:
    """Name what the metrics page holds, with the endings that the client library gives."""
    names = metric_names()
    return names | {f"{name}{ending}" for name in names for ending in ("_total", "_sum", "_count", "_bucket")}
