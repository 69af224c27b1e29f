"""`headgate daemon`: the daemons with their shards, and maintenance."""

from __future__ import annotations

import json

from tests.support.samples.cluster_overviews import cluster as _overview
from tests.support.samples.cluster_overviews import daemon, unreachable


def test_the_list_shows_what_each_daemon_leads(invoke, context):
    context.cluster.overview = _overview(
        daemons=(daemon(spread="settled"), daemon("vm-3", spread="maintenance"), unreachable()),
        leaders=("vm-1", "vm-1"),
    )
    result = invoke("daemon", "list")

    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        ["vm-1", "ready", "settled", "0.1.0", "0,", "1"],
        ["vm-3", "ready", "maintenance", "0.1.0", "-"],
        ["vm-2", "unreachable", "-", "-", "-"],
    ]
    found = json.loads(invoke("daemon", "list", "--json").stdout)
    assert [each["spread"] for each in found] == ["settled", "maintenance", None]


def test_maintenance_begins_and_ends(invoke, context):
    begun, ended = invoke("daemon", "drain", "vm-2"), invoke("daemon", "drain", "vm-2", "--off")

    assert (begun.exit_code, begun.stderr) == (0, "daemon vm-2 is in maintenance; it transfers its shards\n")
    assert (ended.exit_code, ended.stderr) == (0, "the maintenance of daemon vm-2 has ended\n")
    assert context.cluster.calls == [("set_maintenance", "vm-2", True), ("set_maintenance", "vm-2", False)]
    assert json.loads(invoke("daemon", "drain", "vm-2", "--json").stdout) == {"daemon": "vm-2", "maintenance": True}
