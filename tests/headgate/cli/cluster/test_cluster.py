"""`headgate cluster upgrade`: what it shows, and when it raises the level."""

import json

import pytest

from headgate.cli.cluster.judgements import judge_cluster
from headgate.cli.cluster.status import report_lines
from headgate.protocol.requests import RaiseLevel, SetMaintenance
from headgate.views.cluster import FeatureLevel
from tests.support.samples.cluster_overviews import cluster as overview
from tests.support.samples.cluster_overviews import daemon

OLD = "daemon b supports levels 1 to 1"


@pytest.mark.parametrize(
    ("newest", "problems", "shown", "raised", "judged"),
    [
        (1, (), "feature level 1, the newest that the daemons support\n", [], "ok"),
        (2, (), "feature level 1, and every daemon supports level 2: headgate cluster upgrade\n", [2], "ok"),
        (2, (OLD,), f"feature level 1, and level 2 is not possible yet:\n  {OLD}\n", [2], "warning"),
    ],
    ids=["newest", "possible", "prevented"],
)
def test_the_level_is_shown_and_raised(invoke, cluster, newest, problems, shown, raised, judged):
    """The leader refuses a level that a daemon does not support; here it does what it is asked."""
    cluster.overview = overview(feature_level=FeatureLevel(level=1, newest=newest, problems=problems))

    assert invoke("cluster", "upgrade", "--dry-run").stdout == shown
    assert [] == cluster.calls
    document = json.loads(invoke("cluster", "upgrade", "--json").stdout)
    assert [RaiseLevel(level, token="") for level in raised] == cluster.calls
    assert document == {"level": newest, "newest": newest, "problems": []}
    assert [judged] == [each.level for each in judge_cluster(cluster.overview, "1") if each.check == "feature level"]
    assert report_lines(cluster.overview)[0].startswith("cluster local: feature level 1, ")


def test_a_daemon_that_does_not_know_the_level_is_asked_again(invoke, cluster):
    cluster.overview = overview()

    assert "has not heard of the feature level yet: try again" in invoke("cluster", "upgrade").stderr


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([], "it keeps its shards 0, 1 until another daemon can take them; there is no other one"),
        ([("vm-2", "settling"), ("vm-3", "no_broker")], "it transfers its shards 0, 1 to vm-2"),
        (
            [("vm-2", "maintenance"), ("vm-3", None)],
            "it keeps its shards 0, 1 until another daemon can take them; none can now: vm-2 is in maintenance",
        ),
    ],
)
def test_drain_says_who_can_take_the_shards(invoke, cluster, others, text):
    cluster.overview = overview(daemons=[daemon(name, spread=spread) for name, spread in [("vm-1", None), *others]])
    result = invoke("daemon", "drain", "vm-1")
    assert f"daemon vm-1 is in maintenance; {text}" in result.stderr + result.stdout
    assert cluster.calls == [SetMaintenance("vm-1", True, token="")]
    assert "it leads no shard" in invoke("daemon", "drain", "vm-9").stderr
