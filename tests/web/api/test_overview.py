"""The parts of the daemons become one overview."""

from tests.support.samples.status_documents import (
    NOW_MS,
    daemon_document,
    part,
    shard_document,
    subscription_summary,
    topic_summary,
)
from web.api.documents import DaemonPart, DegradedPart
from web.api.overview import merged, ordered_topics


def names(overview):
    return [(each.topic, each.daemon) for each in overview.topics]


def test_totals_add_up_over_daemons():
    two = daemon_document("two", shard_document(1))
    overview = merged(
        "c",
        "one",
        NOW_MS,
        2,
        [
            part("one", [topic_summary("b")], [subscription_summary(topic="b", blocked_since_ms=7)]),
            DaemonPart(daemon=two, topics=(topic_summary("a", shard=1, daemon="two", stored_per_second=None),)),
        ],
    )

    assert names(overview) == [("a", "two"), ("b", "one")]
    cluster, totals = overview.cluster, overview.cluster.totals
    assert (totals.topics, totals.subscriptions, totals.active_segments, totals.sealed_segments) == (2, 1, 4, 2)
    assert (totals.stored_per_second, totals.acknowledged_per_second) == (20.0, 25.0)
    assert (totals.blocked_segments, totals.blocked_since_ms, totals.backlog_records) == (2, 7, 100)
    assert [(each.shard, each.daemon, each.leader_epoch) for each in cluster.shards] == [(0, "one", 3), (1, "two", 3)]
    assert cluster.complete


def test_a_shard_that_two_daemons_claim_belongs_to_the_newer_term():
    old = DaemonPart(
        daemon=daemon_document("old", shard_document(leader_epoch=3)), topics=(topic_summary(daemon="old"),)
    )
    new = DaemonPart(
        daemon=daemon_document("new", shard_document(leader_epoch=4)), topics=(topic_summary(daemon="new"),)
    )

    assert names(merged("c", "old", NOW_MS, 1, [old, new])) == [("orders", "new")]
    assert merged("c", "old", NOW_MS, 1, [new, old]).cluster.shards[0].daemon == "new"


def test_a_daemon_without_an_answer_is_listed_and_makes_the_overview_incomplete():
    dead = DaemonPart(daemon=daemon_document("two", state="unreachable", problem="no answer", components=(), shards=()))
    cluster = merged("c", "one", NOW_MS, 1, [part("one"), dead]).cluster

    assert not cluster.complete
    assert cluster.degraded == (DegradedPart(daemon="two", component="daemon", state="failed", reason="no answer"),)


def test_a_shard_without_a_leader_has_none_and_makes_the_overview_incomplete():
    following = daemon_document("one", shard_document(role="following", leader_epoch=7))
    cluster = merged("c", "one", NOW_MS, 1, [DaemonPart(daemon=following)]).cluster

    assert [(each.daemon, each.leader_epoch) for each in cluster.shards] == [(None, 7)]
    assert not cluster.complete


def test_activity_is_blocked_ones_then_rate_then_backlog():
    topics = [
        topic_summary("idle", stored_per_second=None, backlog_records=None),
        topic_summary("behind", stored_per_second=0.0, backlog_records=7),
        topic_summary("busy", stored_per_second=50.0),
        topic_summary("blocked", stored_per_second=0.0, blocked_segments=1),
    ]
    assert [each.topic for each in ordered_topics(topics, "activity")] == ["blocked", "busy", "behind", "idle"]
    assert [each.topic for each in ordered_topics(topics, "name")] == ["behind", "blocked", "busy", "idle"]
