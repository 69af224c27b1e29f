"""The reply to `describe_cluster`: what is on which page, and its limits."""

from controller.leader.cluster_answers import cluster_reply
from headgate.protocol import codec
from headgate.protocol.codec import PAGE_BYTES
from headgate.protocol.requests import DescribeCluster
from tests.support.samples.status_documents import NOW_MS, part, subscription_summary, topic_summary
from web.api.overview import merged


def overview(*rows, topics=(), others=(), **fields):
    names = sorted({each.topic for each in rows})
    own = part("one", topics or [topic_summary(name) for name in names], rows, **fields)
    return merged("local", "one", NOW_MS, 2, [own, *others])


def names(reply):
    return [(each.topic, each.subscription) for each in reply.subscriptions]


def test_pages_have_every_subscription_once_and_the_overview_once():
    rows = [
        subscription_summary(f"topic-{number:04}", f"{'n' * 90}{letter}") for number in range(400) for letter in "ab"
    ]
    found = overview(*rows)
    pages = [cluster_reply(DescribeCluster(), found)]
    while pages[-1].next is not None:
        pages.append(cluster_reply(DescribeCluster(after=pages[-1].next), found))

    assert len(pages) > 1
    assert all(len(codec.encode(page)) < PAGE_BYTES + 10_000 for page in pages)
    assert [name for page in pages for name in names(page)] == [(row.topic, row.subscription) for row in rows]
    assert [page.overview is not None for page in pages] == [True] + [False] * (len(pages) - 1)
