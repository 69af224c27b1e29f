"""The reply to `describe_cluster`: what is on which page, and its limits."""

from __future__ import annotations

from controller.leader.cluster_answers import cluster_reply
from headgate.protocol import messages as m
from headgate.protocol.paging import PAGE_BYTES
from headgate.views.cluster import ClusterInfo, DaemonInfo
from tests.support.samples.status_documents import (
    NOW_MS,
    part,
    subscription_summary,
    topic_summary,
)
from web.api.overview import merged


def overview(*rows, topics=(), others=(), **fields):
    names = sorted({each.topic for each in rows})
    own = part("one", topics or [topic_summary(name) for name in names], rows, **fields)
    return merged("local", "one", NOW_MS, 2, [own, *others])


def names(reply):
    return [(each.topic, each.subscription) for each in reply.subscriptions]


def test_the_overview_is_that_of_the_http_api_without_what_only_that_has():
    found = overview(subscription_summary(), started_at_ms=NOW_MS - 1000)
    reply = cluster_reply(m.DescribeCluster(), found).overview

    assert (reply.cluster, reply.daemon, reply.as_of_ms, reply.complete) == ("local", "one", NOW_MS, False)
    assert [(each.shard, each.leader_epoch, each.daemon) for each in reply.shards] == [(0, 3, "one"), (1, 0, None)]
    (daemon,) = reply.daemons
    assert (daemon.url, daemon.started_at_ms, daemon.components[0].component) == (
        "http://one.example:9464",
        NOW_MS - 1000,
        "drain",
    )
    assert (type(reply), type(daemon)) == (ClusterInfo, DaemonInfo)
    assert reply.totals == found.cluster.totals


def test_pages_have_every_subscription_once_and_the_overview_once():
    rows = [
        subscription_summary(f"topic-{number:04}", f"{'n' * 90}{letter}") for number in range(400) for letter in "ab"
    ]
    found = overview(*rows)
    pages = [cluster_reply(m.DescribeCluster(), found)]
    while pages[-1].next is not None:
        pages.append(cluster_reply(m.DescribeCluster(after=pages[-1].next), found))

    assert len(pages) > 1
    assert all(len(m.encode(page)) < PAGE_BYTES + 10_000 for page in pages)
    assert [name for page in pages for name in names(page)] == [(row.topic, row.subscription) for row in rows]
    assert [page.overview is not None for page in pages] == [True] + [False] * (len(pages) - 1)
