"""`headgate status`: one screen, JSON, and no leader."""

from __future__ import annotations

import json

from tests.support.samples.cluster_overviews import blocked, subscription
from tests.support.samples.cluster_overviews import cluster as _overview


def test_a_screen_shows_daemons_totals_and_what_is_blocked(invoke, context):
    context.cluster.overview = _overview(blocked("billing"), subscription("audit"))
    result = invoke("status")

    assert (result.exit_code, result.stderr) == (0, "")
    assert "vm-1  ready, 0.1.0, up 3 min" in result.stdout
    assert "orders   billing        2 segments   90 s    segment 0" in result.stdout
    assert "audit" not in result.stdout, "only what is blocked"
    assert len(result.stdout.splitlines()) <= 24
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_has_every_subscription(invoke, context):
    context.cluster.overview = _overview(blocked("billing"), subscription("audit"))
    found = json.loads(invoke("status", "--json").stdout)

    assert (found["cluster"], [each["daemon"] for each in found["daemons"]]) == ("local", ["vm-1"])
    assert [each["subscription"] for each in found["subscriptions"]] == ["billing", "audit"]


def test_the_rest_of_many_blocked_subscriptions_is_counted(invoke, context):
    context.cluster.overview = _overview(*(blocked(f"s{number}") for number in range(20)))
    lines = invoke("status").stdout.splitlines()

    assert lines[-1] == "and 12 more; see --json"
    assert len(lines) <= 24


def test_without_a_leader_it_fails_with_one_line(invoke):
    result = invoke("status")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "headgate: no leader describes cluster 'local'\n"


def test_it_waits_four_seconds_unless_a_timeout_is_given(invoke, context):
    context.cluster.overview = _overview()
    invoke("status")
    assert context.wait_seconds() == 4.0
    invoke("status", "--timeout", "30")
    assert context.wait_seconds() == 30.0
