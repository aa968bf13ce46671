"""Dashboards as the files that Grafana reads."""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tests.dashboards.boards import functions, nodes, overview, regressions
from tests.dashboards.health import daemon_health

FOLDER = Path(__file__).parents[2] / "config" / "grafana" / "dashboards"
BOARDS = {
    "overview.json": overview,
    "functions.json": functions,
    "nodes.json": nodes,
    "regressions.json": regressions,
    "daemon-health.json": daemon_health,
}


def rendered() -> dict[str, str]:
    """Return the text of each file by its name."""
    encoder = JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False)
    return {name: encoder.encode(make().build()) + "\n" for name, make in BOARDS.items()}


def write() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
