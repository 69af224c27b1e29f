"""Builds the dashboard from its rows, with the types of Grafana 11 (grafana-foundation-sdk).

Variables choose the data source, the cluster, topics and subscriptions. Annotations mark splits,
merges, and the starts of leader terms. The output is the same in each run.
"""

import json
from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model

from monitoring.panels import CLUSTER, Panel
from monitoring.rows import DETAILS, INGESTION, NOW, SUBSCRIPTIONS

ROWS: Final = (NOW, SUBSCRIPTIONS, INGESTION, *DETAILS)
SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
STAT_SIZE: Final = (4, 4)
"""Width and height of a number; the grid is 24 wide."""
GRAPH_SIZE: Final = (8, 8)


def dashboard_json() -> str:
    """Return the file that Grafana imports or provisions."""
    builder = (
        dashboard.Dashboard("headgate")
        .uid("headgate")
        .description("One cluster of headgate daemons. Made by `python -m monitoring`.")
        .tags(["headgate"])
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-1h", "now")
        .editable()
        .variables(_variables())
    )
    numbers = count(1)
    for row in ROWS:
        built = dashboard.Row(row.title).id(next(numbers)).collapsed(row.collapsed)
        panels = [_panel(panel, next(numbers)) for panel in row.panels]
        # Panels of a folded row are part of it; Grafana queries them when it is opened.
        if row.collapsed:
            for panel in panels:
                built.with_panel(panel)
        builder.with_row(built)
        if not row.collapsed:
            for panel in panels:
                builder.with_panel(panel)
    document = {**builder.build().to_json(), "annotations": {"list": _annotations()}}
    return json.dumps(document, cls=JSONEncoder, indent=1) + "\n"


def _variables() -> list[Builder[model.VariableModel]]:
    backlog = "headgate_subscription_backlog_records"
    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        _variable("job", "Cluster", "label_values(headgate_build_info, job)"),
        _variable("topic", "Topic", f"label_values({backlog}{{{CLUSTER}}}, topic)").multi(True).include_all(True),
        _variable(
            "subscription", "Subscription", f'label_values({backlog}{{{CLUSTER}, topic=~"$topic"}}, subscription)'
        )
        .multi(True)
        .include_all(True),
    ]


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )


def _annotation(name: str, color: str, expression: str, title: str, labels: str) -> dict[str, object]:
    """Return an annotation with the fields of Prometheus' data source, which the library does not have."""
    event = model.AnnotationQuery(name=name, datasource=SOURCE, enable=True, icon_color=color, expr=expression)
    return {**event.to_json(), "titleFormat": title, "tagKeys": labels, "step": "60s"}


def _annotations() -> list[dict[str, object]]:
    changes = 'sum by (kind, reason) (increase(headgate_layout_changes_total{%s, kind="%s"}[1m])) > 0'
    terms = f"sum by (shard, instance) (increase(headgate_leader_terms_started_total{{{CLUSTER}}}[1m])) > 0"
    return [
        _annotation("Splits", "blue", changes % (CLUSTER, "split"), "Split: {{reason}}", "reason"),
        _annotation("Merges", "purple", changes % (CLUSTER, "merge"), "Merge: {{reason}}", "reason"),
        _annotation("Leader terms", "orange", terms, "{{instance}} leads shard {{shard}}", "shard,instance"),
    ]


def _queries(panel: Panel) -> list[Builder[Dataquery]]:
    return [
        prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(name).datasource(SOURCE)
        for name, query in zip("ABCDEFGH", panel.queries, strict=False)
    ]


def _panel(panel: Panel, number: int) -> Builder[model.Panel]:
    builder = _stat(panel) if panel.kind == "stat" else _graph(panel)
    return (
        builder.id(number)
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .unit(panel.unit)
        .targets(_queries(panel))
    )


def _graph(panel: Panel) -> timeseries.Panel:
    width, height = GRAPH_SIZE
    legend = common.VizLegendOptions().show_legend(any(query.legend for query in panel.queries))
    return (
        timeseries.Panel()
        .span(width)
        .height(height)
        .axis_soft_min(0)
        .fill_opacity(10)
        .show_points(common_model.VisibilityMode.NEVER)
        .legend(legend)
        .tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))
    )


def _stat(panel: Panel) -> stat.Panel:
    width, height = STAT_SIZE
    steps = [model.Threshold(value=None, color="green")]
    if panel.red_from is not None:
        steps.append(model.Threshold(value=panel.red_from, color="red"))
    return (
        stat.Panel()
        .span(width)
        .height(height)
        .thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common_model.BigValueGraphMode.NONE)
    )
