"""The few kinds of panels and variables that the dashboards are made of, so that all look and behave alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
FULL, HALF, THIRD, SIXTH = 24, 12, 8, 4
TAG = "phasewatch"
DRILL_DOWN = (
    "/d/phasewatch-functions?${__url_time_range}&${datasource:queryparam}&${training_job:queryparam}"
    "&${profiler:queryparam}&var-function=${__value.raw:percentencode}"
)

Panel = timeseries.Panel | stat.Panel | table.Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One number of a table.

    Attributes:
        unit: Grafana's name of the unit.
    """

    title: str
    expr: str
    unit: str


def lines(
    title: str,
    *queries: tuple[str, str],
    unit: str,
    says: str,
    span: int = HALF,
    stacked: bool = False,
) -> timeseries.Panel:
    """Make a panel of lines over time.

    Args:
        queries: pairs of an expression and how its series are called.
        says: what is shown, and how to read it.
    """
    panel = timeseries.Panel().title(title).description(says).unit(unit).span(span).height(8).min(0)
    panel.datasource(DATASOURCE).fill_opacity(40 if stacked else 0).show_points(common.VisibilityMode.NEVER)
    legend = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE).calcs(["lastNotNull"])
    panel.legend(legend.placement(common.LegendPlacement.BOTTOM).show_legend(True))
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    panel.tooltip(tooltip.sort(common.SortOrder.DESCENDING))
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for place, (expr, legend_text) in enumerate(queries):
        target = prometheus.Dataquery().expr(expr).legend_format(legend_text).range()
        panel.with_target(target.ref_id(chr(ord("A") + place)))
    return panel


def number(title: str, expr: str, *, unit: str, says: str, span: int = SIXTH) -> stat.Panel:
    """Make a panel that shows the present value."""
    panel = stat.Panel().title(title).description(says).unit(unit).span(span).height(4).datasource(DATASOURCE)
    panel.graph_mode(common.BigValueGraphMode.NONE)
    return panel.with_target(prometheus.Dataquery().expr(expr).instant().ref_id("A"))


def listing(title: str, *columns: Column, by: str, says: str, span: int = FULL, link: bool = False) -> table.Panel:
    """Make a table with a row for each value of a label, sorted by its first column.

    Args:
        link: lead from the label, a function, to what there is about it.
    """
    panel = table.Panel().title(title).description(says).span(span).height(10).datasource(DATASOURCE)
    names = {f"Value #{chr(ord('A') + place)}": column.title for place, column in enumerate(columns)}
    if len(columns) == 1:
        names["Value"] = columns[0].title
    for place, column in enumerate(columns):
        target = prometheus.Dataquery().expr(column.expr).instant().format(PromQueryFormat.TABLE)
        panel.with_target(target.ref_id(chr(ord("A") + place)))
        panel.override_by_name(column.title, [DynamicConfigValue("unit", column.unit)])
    panel.with_transformation(DataTransformerConfig("merge", options={}))
    order = {name: place for place, name in enumerate((by, *names))}
    organize = {"excludeByName": {"Time": True}, "renameByName": names, "indexByName": order}
    panel.with_transformation(DataTransformerConfig("organize", options=organize))
    if link:
        links: list[object] = [{"title": "Over time, by node", "url": DRILL_DOWN}]
        panel.override_by_name(by, [DynamicConfigValue("links", links), DynamicConfigValue("custom.minWidth", 400)])
    return panel.sort_by([common_builders.TableSortByFieldState().display_name(columns[0].title).desc(True)])


def label_choice(
    label: str, metric: str, *, title: str, several: bool = False, first: str | None = None
) -> builders.QueryVariable:
    """Make a variable that offers the values of a label.

    Args:
        metric: where the label is looked up, with its selectors.
        several: allow any number of values, at first all of them.
        first: what is chosen at first.
    """
    variable = builders.QueryVariable(label).label(title).datasource(DATASOURCE).sort(VariableSort.ALPHABETICAL_ASC)
    variable.query({"query": f"label_values({metric}, {label})", "refId": label})
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    if several:
        variable.multi(True).include_all(True).all_value(".*").current(VariableOption(True, "All", "$__all"))
    elif first is not None:
        variable.current(VariableOption(True, first, first))
    return variable


def length_choice(name: str, values: Sequence[str], *, title: str) -> builders.CustomVariable:
    """Make a variable that offers lengths of time; the first is chosen at first."""
    variable = builders.CustomVariable(name).label(title).values(",".join(values))
    return variable.current(VariableOption(True, values[0], values[0]))


def board(
    uid: str,
    title: str,
    says: str,
    variables: Sequence[builders.QueryVariable | builders.CustomVariable],
    panels: Sequence[Panel],
) -> builders.Dashboard:
    """Put a dashboard together."""
    result = builders.Dashboard(title).uid(uid).description(says).tags([TAG]).time("now-3h", "now").refresh("30s")
    links = builders.DashboardLink("phasewatch").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    result.link(links.include_vars(True).keep_time(True).as_dropdown(True)).timezone("browser").readonly()
    result.with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        result.with_variable(variable)
    for place, panel in enumerate(panels, start=1):
        result.with_panel(panel.id(place))
    return result
