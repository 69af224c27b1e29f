"""The status page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace as replace_struct

from headgate.model.layout import Layout
from headgate.protocol.backlog import SegmentBacklog, summarize_backlog
from headgate.protocol.messages import (
    BucketRangeProgress,
    ConsumerDescription,
    ExternalDescription,
    SegmentProgress,
    SubscriptionDescription,
    TopicDescription,
)
from metrics.health import judge_health
from metrics.status import DaemonStatus, ShardStatus
from metrics.status_page import MAX_ROWS, status_page
from tests.support.status_values import HEALTHY_FACTS, segment_descriptions

FACTS = replace(HEALTHY_FACTS, drain="degraded", drain_reason="no answer")
HEALTH = judge_health(FACTS)


def topic(name="orders"):
    return TopicDescription(
        topic=name,
        topic_id=1,
        shard=0,
        layout_epoch=3,
        segments=segment_descriptions(Layout.initial(1, 0).split(0, 100, 0)),
        subscriptions=["billing"],
    )


def subscription(name="billing", topic_name="orders", consumer="worker-1"):
    return SubscriptionDescription(
        topic=topic_name,
        subscription=name,
        subscription_id=1,
        type="STREAM",
        order="key",
        seek_generation=0,
        consumers=[ConsumerDescription(consumer=consumer, incarnation=1, connected=True, segments=[0])],
        segments=[
            SegmentProgress(
                segment=0,
                status="granted",
                acknowledged_offset=60,
                next_offset=100,
                consumer=consumer,
                generation=17,
                unacknowledged=38,
            ),
            SegmentProgress(
                segment=1, status="blocked", acknowledged_offset=0, next_offset=4, blocked_by=[0], unacknowledged=4
            ),
        ],
    )


TOPICS = (topic(),)
SUBSCRIPTIONS = (subscription(),)


def page(*, topics=TOPICS, subscriptions=SUBSCRIPTIONS, backlogs=(), instance="one", health=HEALTH):
    led = ShardStatus(
        shard=0,
        role="leading",
        leader_epoch=12,
        head=345,
        topics=tuple(topics),
        subscriptions=tuple(subscriptions),
        backlogs=tuple(backlogs),
    )
    followed = ShardStatus(shard=1, role="following", leader_epoch=8, head=77)
    return status_page(DaemonStatus(instance=instance, shards=(led, followed), cluster="local"), health)


class Reader(HTMLParser):
    """Collects table rows and tags."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self._cell = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data):
        if self._cell:
            self.rows[-1][-1] += data


def test_the_page_shows_leaders_consumers_and_blockers():
    rows = Reader(page()).rows

    assert ["0", "leading", "12", "345", "0", "0", "1", ""] in rows
    assert ["1", "following", "8", "77", "0", "0", "see its leader", ""] in rows
    assert ["0", "granted", "worker-1", "17", "60", "38", ""] in rows
    assert ["1", "blocked", "", "", "0", "4", "0"] in rows
    assert ["drain", "degraded", "degraded: no answer; children of split and merged segments stay blocked"] in rows


def test_an_external_topic_shows_its_source_and_labels_escaped():
    described = topic()
    segments = [replace_struct(segment, label=f"shardId-<{segment.segment}>") for segment in described.segments]
    source = ExternalDescription(source="kinesis:<orders>", positions="opaque", hash_bits=128)
    external = replace_struct(described, segments=segments, external=source)
    held = subscription()
    held = replace_struct(held, segments=[replace_struct(held.segments[0], label="shardId-<0>")])
    text = page(topics=[external], subscriptions=[held])

    assert "external, stored in kinesis:&lt;orders&gt;." in text
    assert "sealed, source segment shardId-&lt;0&gt;" in text
    assert ["0 shardId-<0>", "granted"] == Reader(text).rows[-1][:2]


def backlog_of(*records, **more):
    """Return the backlog of `subscription` with these records per segment; None is unknown."""
    fields = {"topic": "orders", "subscription": "billing", "subscription_type": "STREAM", "as_of_ms": 9000} | more
    parts = [
        SegmentBacklog(segment=at, sealed=False, records=left, label=f"shard-{at}") for at, left in enumerate(records)
    ]
    return summarize_backlog(counted_by="spark", segments=parts, **fields)


@pytest.mark.parametrize(
    ("backlogs", "remaining", "text_shown"),
    [
        ([backlog_of(7, 5)], ["7", "5"], "12 records unacknowledged."),
        (
            [backlog_of(7, None, unknown_reason="no <version> is mapped")],
            ["7", "-"],
            "The backlog is unknown. no &lt;version&gt; is mapped.",
        ),
        ([], ["-", "-"], "in their grace period.</p>"),
    ],
    ids=["known", "partly known", "unknown"],
)
def test_an_unknown_backlog_of_an_external_topic_is_never_shown_as_0(backlogs, remaining, text_shown):
    held = subscription()
    segments = [replace_struct(each, label=f"shard-{each.segment}", unacknowledged=None) for each in held.segments]
    text = page(subscriptions=[replace_struct(held, segments=segments)], backlogs=backlogs)

    assert [row[5] for row in Reader(text).rows[-2:]] == remaining
    assert text_shown in text


def test_positions_that_are_not_tracked_are_no_numbers():
    checkpoint = SegmentProgress(segment=5, status="granted", acknowledged_offset=0, next_offset=100)
    rows = Reader(page(subscriptions=[replace_struct(subscription(), type="CHECKPOINT", segments=[checkpoint])])).rows

    assert ["5", "granted", "", "", "-", "-", ""] in rows


def test_a_shared_segment_shows_its_bucket_ranges_and_their_consumers():
    """Each range has a row, and a box in a drawing. Names are escaped in both."""
    ranges = [
        BucketRangeProgress(
            first_bucket=0,
            end_bucket=8,
            status="granted",
            acknowledged_offset=60,
            consumer="<ann>",
            generation=5,
            unacknowledged=20,
            estimated=True,
        ),
        BucketRangeProgress(
            first_bucket=8, end_bucket=16, status="waiting", acknowledged_offset=40, unacknowledged=30, estimated=True
        ),
    ]
    segment = SegmentProgress(
        segment=3,
        status="shared",
        acknowledged_offset=40,
        next_offset=100,
        bucket_ranges=ranges,
        unacknowledged=50,
        estimated=True,
    )
    text = page(subscriptions=[replace_struct(subscription(), segments=[segment])])

    assert Reader(text).rows[-3:] == [
        ["3", "shared", "", "", "40", "~50", ""],
        ["3[0-7]", "granted", "<ann>", "5", "60", "~20", ""],
        ["3[8-15]", "waiting", "", "", "40", "~30", ""],
    ]
    assert "buckets 0-7 of segment 3: &lt;ann&gt;, granted" in text
    assert ">&lt;ann&gt;</text>" in text


@pytest.mark.parametrize("where", ["instance", "topic", "subscription", "consumer", "reason"])
def test_all_text_is_escaped(where):
    evil = "</title><script>alert(1)</script><img src=x onerror=y>\"'"
    text = {
        "instance": lambda: page(instance=evil),
        "topic": lambda: page(topics=[topic(evil)], subscriptions=[subscription(topic_name=evil)]),
        "subscription": lambda: page(subscriptions=[subscription(evil)]),
        "consumer": lambda: page(subscriptions=[subscription(consumer=evil)]),
        "reason": lambda: page(health=judge_health(replace(FACTS, drain_reason=evil))),
    }[where]()

    assert "script" in text, "the name is shown as text"
    assert {"script", "img"} & {tag for tag, _ in Reader(text).tags} == set()


def test_the_page_loads_nothing():
    """It has no script, no style attribute and no external link."""
    tags = Reader(page()).tags

    assert "script" not in dict(tags)
    assert all("style" not in attributes for _, attributes in tags)
    assert all(not name.startswith("on") for _, attributes in tags for name in attributes)
    targets = [attributes[name] for _, attributes in tags for name in ("href", "src") if name in attributes]
    assert targets
    assert all(re.fullmatch(r"/[a-z]+", target) for target in targets)


def test_the_page_is_limited_and_says_so():
    many = [topic(f"topic-{n:04}") for n in range(MAX_ROWS + 5)]
    text = page(topics=many, subscriptions=[])
    assert text.count("<svg") == MAX_ROWS
    assert "5 more topics are not shown" in text

    text = page(subscriptions=[subscription(f"s{n}") for n in range(MAX_ROWS + 3)])
    assert text.count("<h3>") == MAX_ROWS
    assert "3 more subscriptions are not shown" in text


def test_a_subscription_is_shown_under_its_own_topic():
    text = page(topics=[topic("a"), topic("b")], subscriptions=[subscription("of-b", topic_name="b")])

    assert text.index("Topic a") < text.index("Topic b") < text.index("of-b")
    assert text.count("of-b") == 1


def test_a_daemon_that_has_not_joined_has_a_page():
    health = judge_health(replace(FACTS, shards=0, shards_led=0))
    text = status_page(DaemonStatus(instance="one"), health)

    assert "No topics" in text
    assert "not joined yet" in text
