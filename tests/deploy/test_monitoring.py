"""Alerts, the runbook and the dashboard use metrics, labels and log events that exist."""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from controller.settings.load import load_settings
from headgate.views.subscriptions import SegmentBacklogInfo
from metrics.events import BacklogUpdated, TermEnded
from metrics.instruments import Instruments
from monitoring.dashboard import dashboard_json
from tests.support.samples.cluster_overviews import backlog
from tests.support.samples.example_events import example_events

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
ALL_RULES = yaml.load((PROMETHEUS / "headgate.rules.yml").read_text(), yaml.CSafeLoader)["groups"][0]["rules"]
RECORDED = {rule["record"]: rule["expr"] for rule in ALL_RULES if "record" in rule}
RULES = [rule for rule in ALL_RULES if "alert" in rule]
RULE_TESTS = yaml.load((PROMETHEUS / "headgate.rules.test.yml").read_text(), yaml.CSafeLoader)["tests"]
DASHBOARD = json.loads((DEPLOY / "grafana" / "headgate.json").read_text())
PACKAGES = ("controller", "coordinator", "drain", "headgate", "metrics", "shard", "web")
PROMETHEUS_METRICS = {"up", "ALERTS"}
"""Series that Prometheus creates."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is missing; it comes with Debian's package prometheus, and CI installs it",
)


def promtool(*arguments):
    return subprocess.run(
        ["promtool", *arguments],
        cwd=PROMETHEUS,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,  # On a busy machine the rules alone take a minute.
        env=os.environ | {"GOGC": "400"},  # 140 MB instead of 70, a fifth less processor time
    )


@functools.cache
def exported():
    """Return every series of a scrape → its labels."""
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    # A series per shard exists once there was an event of that shard. The end of a term removes some.
    for event in example_events():
        if not isinstance(event, TermEnded):
            instruments.observe(event)
    counted = backlog([SegmentBacklogInfo(segment=0, sealed=False, records=1)], as_of_ms=0)
    instruments.observe(BacklogUpdated(shard=1, backlogs=(counted,), now_ms=0))
    found = {}
    for family in registry.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        for suffix in suffixes:
            found[family.name + suffix] = {label for sample in family.samples for label in sample.labels}
    return found


def metric_names(expression):
    """Return the metrics in a PromQL expression, and those that the recorded ones in it are made of."""
    recorded = set(re.findall(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", expression))
    if recorded:
        rest = re.sub(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", " ", expression)
        return metric_names(rest).union(*(metric_names(RECORDED[name]) for name in recorded))
    return set(re.findall(r"\b(?:headgate|process|python)_[a-z_]+|\bup\b|\bALERTS\b", expression))


def panels():
    """Return all panels, also those of folded rows."""
    found = [*DASHBOARD["panels"], *(panel for row in DASHBOARD["panels"] for panel in row.get("panels", []))]
    return [panel for panel in found if panel["type"] != "row"]


def expressions():
    """Return where → expression, of alerts, panels, annotations and variables."""
    return [
        *((rule["alert"], rule["expr"]) for rule in RULES),
        *((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]),
        *((event["name"], event["expr"]) for event in DASHBOARD["annotations"]["list"]),
        *(
            (
                variable["name"],
                re.sub(r"label_values\((.*), (\w+)\)", r"count by (\2) (\1)", variable["query"]["query"]),
            )
            for variable in DASHBOARD["templating"]["list"]
            if variable["type"] == "query"
        ),
    ]


@needs_promtool
def test_promtool_accepts_the_rules():
    result = promtool("check", "rules", "headgate.rules.yml")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.system  # plays an hour of samples for each of 70 cases
@needs_promtool
def test_every_alert_fires_when_it_should_and_not_otherwise(tmp_path):
    """Each case is judged by the rules that it names, because a case evaluates every rule of its file."""
    files = []
    for alert, cases in itertools.groupby(RULE_TESTS, lambda case: case["alert_rule_test"][0]["alertname"]):
        rules = [rule for rule in ALL_RULES if rule.get("alert", alert) == alert]
        tests = {"rule_files": [f"{alert}.yml"], "evaluation_interval": "15s", "tests": list(cases)}
        assert {each["alertname"] for case in tests["tests"] for each in case["alert_rule_test"]} == {alert}
        (tmp_path / f"{alert}.yml").write_text(json.dumps({"groups": [{"name": alert, "rules": rules}]}))
        files.append(tmp_path / f"{alert}.test.yml")
        files[-1].write_text(json.dumps(tests))
    result = promtool("test", "rules", *files)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_promtool_accepts_the_example_configuration(tmp_path):
    """It looks for the file of the token."""
    text, token = (PROMETHEUS / "prometheus.yml").read_text(), tmp_path / "token"
    assert "credentials_file: /etc/prometheus/headgate-token\n" in text
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/headgate-token", str(token)))
    shutil.copy(PROMETHEUS / "headgate.rules.yml", tmp_path)
    token.write_text("token")
    result = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES])
def test_every_alert_is_tested_both_ways_and_has_a_runbook_section(alert):
    """One case fires, one does not. The section has a first command."""
    cases = [case for test in RULE_TESTS for case in test["alert_rule_test"] if case["alertname"] == alert]
    fired = [each["exp_labels"] for case in cases for each in case["exp_alerts"]]
    assert fired, "no case fires"
    assert [] in [case["exp_alerts"] for case in cases], "each case fires"
    assert {"headgate"} == {labels.get("job") for labels in fired}, "the dashboard counts the alerts of a cluster"

    runbook = (PROMETHEUS / "RUNBOOK.md").read_text()
    section = re.search(rf"^## {alert}\n(.*?)(?=^## |\Z)", runbook, re.MULTILINE | re.DOTALL)
    assert section, "no section"
    assert [word for word in ("Meaning: ", "Impact: ", "First: ") if word not in section[1]] == []
    rule = next(rule for rule in RULES if rule["alert"] == alert)
    base = '{{ or $externalLabels.headgate_runbook "RUNBOOK.md" }}'
    assert rule["annotations"]["runbook_url"] == f"{base}#{alert.lower()}"


LOG_EVENT = re.compile(r"\.(?:info|warning|error|exception)\(\s*\"([a-z_]+\.[a-z_]+)\"")


def test_every_log_event_in_the_runbook_exists():
    sources = [path.read_text() for package in PACKAGES for path in (DEPLOY.parent / package).rglob("*.py")]
    logged = {event for source in sources for event in LOG_EVENT.findall(source)}
    searched = set(re.findall(r"grep '?([a-z_]+\.[a-z_]+)", (PROMETHEUS / "RUNBOOK.md").read_text()))

    assert searched
    assert searched - logged == set()


def test_every_metric_in_an_expression_exists():
    """A misspelled name is an empty graph, or an alert that never fires."""
    known = exported().keys() | PROMETHEUS_METRICS
    named = [(where, expression, metric_names(expression)) for where, expression in expressions()]

    assert len(named) > 100
    assert [] == [(where, expression) for where, expression, names in named if not names or names - known]


def test_the_samples_of_rule_tests_have_the_labels_of_their_metrics():
    """An operator between two metrics with other labels finds no pair, and its alert never fires."""
    series = {each["series"] for test in RULE_TESTS for each in test["input_series"]}
    given = {each: set(re.findall(r"(\w+)=", each)) - {"job", "instance"} for each in series}

    assert {each: exported().get(each.partition("{")[0], set()) for each in series} == given


def test_every_metric_is_in_a_panel_or_in_a_rule():
    """One that is in neither costs every scrape, and helps no operator."""
    used = set().union(*(metric_names(expression) for _, expression in expressions()))
    ours = {name for name in exported() if name.startswith("headgate_") and not name.endswith(("_sum", "_count"))}

    assert ours - used == set()


def test_the_dashboard_is_made_by_python_m_monitoring():
    assert dashboard_json() == (DEPLOY / "grafana" / "headgate.json").read_text(), "run `python -m monitoring`"


@needs_promtool
def test_prometheus_can_parse_the_expressions_of_the_dashboard(tmp_path):
    """As rules, because promtool parses those without a server."""
    found = sorted({expression.replace("$__rate_interval", "5m") for _, expression in expressions()})
    rules = [{"record": f"parsed:{at}", "expr": expression} for at, expression in enumerate(found)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "parsed", "rules": rules}]}))
    result = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_panels_of_the_dashboard_follow_the_cluster_and_say_what_they_show():
    """No fixed data source."""
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"].endswith(".")


def test_the_example_scrapes_the_address_of_the_example_daemon():
    """The address is that of deploy/headgate.toml, the job name that of the rules, and alerts know the runbook."""
    http = load_settings(DEPLOY / "headgate.toml").http
    configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    job = next(job for job in configuration["scrape_configs"] if job["job_name"] == "headgate")

    assert job["static_configs"] == [{"targets": [f"{http.host}:{http.port}"]}]
    assert "metrics_path" not in job
    assert configuration["global"]["external_labels"].keys() == {"headgate_runbook"}
