"""What `headgate status` shows of a cluster, on one screen of 80 columns."""

from headgate.cli.cluster.status import MAX_SUBSCRIPTIONS, report_lines, subscription_rows
from headgate.views.cluster import ComponentInfo
from tests.support.samples.cluster_overviews import NOW_MS, blocked, cluster, daemon, subscription, totals, unreachable

OTHER_LEDGER = ComponentInfo(
    component="drain",
    state="degraded",
    reason="file:///b was counted, and this daemon's ledger is file:///a; children of split and merged segments stay "
    "blocked: see its log",
)


def test_a_cluster_without_problems():
    assert report_lines(cluster()) == [
        "cluster local: 2 shards, each has a leader; complete",
        "",
        "vm-1  ready, 0.1.0, up 3 min, Spark ready, http://vm-1:9464",
        "  leads 0-1 (term 3)",
        "",
        "1 topic, 3 active segments, 1 sealed; 0 subscriptions, 2 consumers",
        "20.0 records/s in, 25.0/s acknowledged, backlog 1 200 records",
    ]


def test_what_is_wrong_is_said_with_its_reason():
    lines = report_lines(
        cluster(
            daemons=(daemon("vm-1", OTHER_LEDGER, state="degraded"), unreachable("vm-2")),
            leaders=("vm-1", None),
            complete=False,
            totals=totals(daemons=2, backlog_records=None, acknowledged_per_second=None, disconnected_consumers=1),
        )
    )

    assert lines == [
        "cluster local: 2 shards, 1 without a leader; incomplete: totals lack what did",
        "  not answer",
        "",
        "vm-1  degraded, 0.1.0, up 3 min, Spark not ready, http://vm-1:9464",
        "  leads 0 (term 3)",
        "vm-2  unreachable, http://vm-2:9464",
        "  leads no shard",
        "without a leader: 1 (term 3)",
        "",
        "degraded:",
        "  vm-2: daemon 'vm-2' did not answer",
        "  vm-1 drain degraded: file:///b was counted, and this daemon's ledger is",
        "    file:///a; children of split and merged segments stay blocked: see its log",
        "",
        "1 topic, 3 active segments, 1 sealed; 1 subscription, 2 consumers, 1 away",
        "20.0 records/s in, ?/s acknowledged, backlog ? records",
    ]


def test_the_longest_blocked_come_first_and_then_the_largest_backlogs():
    rows = subscription_rows(
        [
            subscription("small", disconnected_consumers=1, backlog_records=7),
            subscription("large", outlook="never", drained_in_seconds=None, acknowledged_per_second=150.4),
            blocked("a", seconds=5),
            blocked("b", seconds=7200, segments=(0, 4)),
            blocked("c", blocking_segments=(), blocked_since_ms=None),
            blocked("d", seconds=60, segments=range(5), draining_segments=9),
        ],
        NOW_MS,
    )

    assert [(row[1], row[-1]) for row in rows] == [
        ("b", "2 segments for 2 h by segments 0, 4"),
        ("d", "2 segments for 60 s by segments 0, 1, 2, 3, 4, …"),
        ("a", "2 segments for 5 s by segment 0"),
        ("c", "2 segments for ? by ?"),
        ("large", "-"),
        ("small", "-"),
    ]
    assert rows[-2:] == [
        ["orders", "large", "2", "20.0", "150", "1 200", "never", "-"],
        ["orders", "small", "2 +1 away", "20.0", "25.0", "7", "4 min", "-"],
    ]
    assert len(subscription_rows([blocked(str(n)) for n in range(50)], NOW_MS)) == MAX_SUBSCRIPTIONS


def test_what_is_not_known_and_what_does_not_exist():
    unknown = {"stored_per_second": None, "acknowledged_per_second": None, "backlog_records": None}
    rows = subscription_rows(
        [subscription("a", outlook="unknown", **unknown), subscription("b", outlook="not_tracked", **unknown)], NOW_MS
    )

    assert [row[3:7] for row in rows] == [["?", "?", "?", "?"], ["?", "-", "-", "-"]]
