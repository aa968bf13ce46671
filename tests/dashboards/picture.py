"""A picture of a dashboard's content: its panels where Grafana puts them, filled by a real Prometheus."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

PICTURE_VARIABLE = "OVERVIEW_PICTURE"
"""Where the test that fills the dashboards leaves the picture, if it is to be kept."""
WIDTH = 24
"""Grafana's columns."""
COLUMN_INCHES, ROW_INCHES = 0.5, 0.36
MOST_SERIES = 8
SECONDS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))
LONGEST_NAME = 48


class Line(NamedTuple):
    """One series of a panel: what it is called, and its points."""

    name: str
    times: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What Prometheus is asked for.

    Attributes:
        address: of its interface. start, end: seconds since the epoch. points: how many of each series.
        faster: how many seconds of training one second of the clock stands for.
        fill: puts values in the place of an expression's variables.
    """

    address: str
    start: float
    end: float
    fill: Callable[[str], str]
    points: int = 200
    faster: float = 1.0

    def lines(self, target: Mapping[str, Any]) -> list[Line]:
        """Ask for a query of a panel over time; times are minutes of training since the start."""
        step = (self.end - self.start) / self.points
        found = self._ask("query_range", target, start=self.start, end=self.end, step=step)
        return [
            Line(
                name=legend(target["legendFormat"], one["metric"]),
                times=[(float(time) - self.start) * self.faster / 60 for time, _ in one["values"]],
                values=[float(value) for _, value in one["values"]],
            )
            for one in found
        ]

    def value(self, target: Mapping[str, Any]) -> float | None:
        """Ask for a query of one value, at the end."""
        found = self._ask("query", target, time=self.end)
        return float(found[0]["value"][1]) if found else None

    def _ask(self, path: str, target: Mapping[str, Any], **parameters: float) -> list[Any]:
        asked = urllib.parse.urlencode({"query": self.fill(target["expr"]), **parameters})
        with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{asked}", timeout=10) as response:
            result: list[Any] = json.load(response)["data"]["result"]
        return result


def draw(board: Mapping[str, Any], window: Window, file: Path) -> dict[str, int]:
    """Draw a dashboard of numbers and lines, given as its JSON; returns how many series each panel shows."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = Figure(figsize=(WIDTH * COLUMN_INCHES, rows * ROW_INCHES), facecolor="white")
    FigureCanvasAgg(figure)
    shown = {}
    for panel in board["panels"]:
        axes = figure.add_axes(box(panel["gridPos"], rows))
        axes.set_title(panel["title"], fontsize=9, loc="left", fontweight="bold")
        kind = draw_number if panel["type"] == "stat" else draw_lines
        shown[panel["title"]] = kind(axes, panel, window)
    figure.savefig(file, dpi=90, metadata={"Software": None})
    return shown


def box(grid: Mapping[str, int], rows: int) -> tuple[float, float, float, float]:
    """Return where a panel's axes lie: left, bottom, width and height as shares of the picture."""
    left, right, above, below = 1.2, 0.4, 1.0, 0.3 * grid["h"]
    return (
        (grid["x"] + left) / WIDTH,
        (rows - grid["y"] - grid["h"] + below) / rows,
        (grid["w"] - left - right) / WIDTH,
        (grid["h"] - above - below) / rows,
    )


def draw_number(axes: Axes, panel: Mapping[str, Any], window: Window) -> int:
    """Draw a panel that holds one value."""
    value = window.value(panel["targets"][0])
    text = "no data" if value is None else readable(value, panel["fieldConfig"]["defaults"]["unit"])
    axes.set_axis_off()
    axes.text(0.0, 0.3, text, fontsize=17, color="#1f60c4", transform=axes.transAxes)
    return int(value is not None)


def draw_lines(axes: Axes, panel: Mapping[str, Any], window: Window) -> int:
    """Draw a panel of lines over time, or of areas where they are stacked."""
    defaults = panel["fieldConfig"]["defaults"]
    series = [line for target in panel["targets"] for line in window.lines(target)]
    series.sort(key=lambda line: -line.values[-1])
    if "stacking" in defaults["custom"]:
        times = sorted({time for line in series for time in line.times})
        heights = [
            [dict(zip(line.times, line.values, strict=True)).get(time, 0.0) for time in times] for line in series
        ]
        axes.stackplot(times, heights, labels=[line.name for line in series], alpha=0.7)
    else:
        for line in series[:MOST_SERIES]:
            axes.plot(line.times, line.values, label=line.name, linewidth=1.4)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, (window.end - window.start) * window.faster / 60)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: readable(value, defaults["unit"])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if series:
        axes.legend(fontsize=6.5, loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncols=2, frameon=False)
    return len(series)


def legend(form: str, labels: Mapping[str, str]) -> str:
    """Name a series as Grafana does, shortened in its middle."""
    name = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), form)
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def readable(value: float, unit: str) -> str:
    """Write a value with its unit, for the units that the dashboards use."""
    if not math.isfinite(value):
        return "–"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        size, word = next((it for it in SECONDS if abs(value) >= it[0]), (1e-6, "µs"))
        return f"{value / size:.3g} {word}" if value else "0 s"
    return f"{value:.3g}{' /s' if unit in ('hertz', 'cps') else ''}"
