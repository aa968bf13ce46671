"""Every PromQL expression of the dashboards as they are checked in, read from the files that Grafana reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.dashboards.rendering import FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """One query of one panel, or one of those that give a variable its values."""

    board: str
    title: str
    text: str


def boards() -> dict[str, dict[str, Any]]:
    """Read the files by their names."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def panel_expressions() -> Iterator[Expression]:
    """Return what panels ask."""
    for name, board in boards().items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield Expression(board=name, title=panel["title"], text=target["expr"])


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """Put values in the place of variables, the longest names first."""
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(f"${name}", values[name])
    return text
