"""`headgate topic` and `headgate subscription`: requests and output."""

import json

import msgspec
import pytest

from headgate import BucketRangeAssignment, ConsumerInfo, SegmentAssignment, TopicPolicy
from headgate.protocol.requests import (
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    MergeSegments,
    PruneTopic,
    SetTopicPolicy,
    SplitSegment,
)
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, segment, subscription, topic


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    cluster.topics["orders"] = topic(
        "orders",
        segment(0, 0, 0x7FFF, next_offset=12, size_bytes=2000),
        segment(1, 0x8000, 0xFFFF),
        subscriptions=("billing",),
    )
    cluster.subscriptions.append(subscription("orders", "billing"))
    return cluster


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (("topic", "create", "new"), CreateTopic("new", "", 1)),
        (("topic", "create", "new", "--segments", "4"), CreateTopic("new", "", 4)),
        (("topic", "split", "orders", "0"), SplitSegment("orders", 0, token="")),
        (("topic", "merge", "orders", "0", "1"), MergeSegments("orders", (0, 1), token="")),
        (
            ("topic", "set", "orders", "--auto-split", "on", "--auto-merge", "off", "--max-segments", "16"),
            SetTopicPolicy("orders", token="", policy=TopicPolicy(auto_split=True, auto_merge=False, max_segments=16)),
        ),
        (
            ("topic", "set", "orders", "--max-age", "7d", "--min-segments", "2"),
            SetTopicPolicy("orders", token="", policy=TopicPolicy(max_age_ms=604_800_000, min_segments=2)),
        ),
        (
            ("topic", "set", "orders", "--max-age", "none"),
            SetTopicPolicy("orders", token="", policy=TopicPolicy(max_age_ms=-1)),
        ),
        (
            ("topic", "set", "orders", "--auto-split", "default", "--max-age", "default"),
            SetTopicPolicy("orders", token="", reset=["auto_split", "max_age_ms"]),
        ),
        (("topic", "delete", "orders", "--yes"), DeleteTopic("orders", token="")),
        (("topic", "delete", "orders", "--force", "-y"), DeleteTopic("orders", token="", force=True)),
        (("subscription", "delete", "orders", "billing", "--yes"), DeleteSubscription("orders", "billing", token="")),
        (
            ("subscription", "delete", "orders", "billing", "--force", "--yes"),
            DeleteSubscription("orders", "billing", token="", force=True),
        ),
    ],
)
def test_each_command_sends_its_arguments(words, call, invoke, orders):
    result = invoke(*words)

    assert result.exit_code == 0, result.stderr
    assert orders.calls == [call]


def test_an_unknown_topic_is_an_error_that_names_the_near_ones(invoke: Invoke, orders: FakeCluster):
    for words in (("topic", "describe", "ordres"), ("topic", "delete", "ordres", "--yes"), ("consume", "ordres", "b")):
        result = invoke(*words)

        text = "headgate: topic 'ordres' does not exist; did you mean 'orders'?\n"
        assert (result.exit_code, result.stderr) == (1, text)


def test_names_in_a_table_are_not_parsed_as_markup(invoke: Invoke, cluster: FakeCluster):
    cluster.subscriptions.append(subscription("orders", "[red]x"))

    assert "[red]x" in invoke("subscription", "list").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give at least one option"),
        (("--auto-split", "yes"), "is not one of on, off, default"),
        (("--max-segments", "0"), "from 1 to 1024"),
        (("--max-age", "7"), "30s, 15m, 12h, 7d, 2w"),
    ],
    ids=["nothing named", "switch", "count", "duration"],
)
def test_an_invalid_policy_is_rejected_without_a_request(words, message, invoke, orders):
    result = invoke("topic", "set", "orders", *words)

    assert result.exit_code == 2
    assert message in result.stderr
    assert orders.calls == []


@pytest.mark.parametrize(("flags", "word"), [(("--yes",), "pruned"), (("--dry-run",), "would be pruned")])
def test_prune_lists_pruned_segments_and_the_reasons_of_the_others(flags, word, invoke, orders):
    result = invoke("topic", "prune", "orders", *flags)

    assert orders.calls == [PruneTopic("orders", token="", dry_run=flags == ("--dry-run",))]
    rows = [line.split(maxsplit=1) for line in result.stdout.splitlines()[2:]]
    assert [[number, text[: len(word)]] for number, text in rows[:2]] == [["0", word], ["1", word]]
    assert "billing' has acknowledged 5 of 12 records" in result.stdout
    assert "audit" in result.stderr
    printed = json.loads(invoke("topic", "prune", "orders", *flags, "--json").stdout)
    assert printed.keys() == {"segments", "retained", "abandoned"}
    assert printed["segments"] == [0, 1]


def test_subscription_describe_shows_bucket_ranges_and_why_a_consumer_is_idle(invoke: Invoke, cluster: FakeCluster):
    held = {"acknowledged_offset": 7, "unacknowledged": 1, "estimated": True}
    free = {"acknowledged_offset": 9, "unacknowledged": 0}
    parts = [
        BucketRangeAssignment(first_bucket=0, end_bucket=8, status="granted", consumer="a", generation=2, **held),
        BucketRangeAssignment(first_bucket=8, end_bucket=16, status="waiting", **free),
    ]
    segments = [
        SegmentAssignment(segment=3, status="shared", next_offset=9, bucket_ranges=parts, **held),
        SegmentAssignment(segment=4, status="granted", next_offset=9, consumer="a", **free),
    ]
    consumers = [
        ConsumerInfo(consumer="a", incarnation=1, connected=True, segments=[3, 4], bucket_ranges=[(3, 0, 8)]),
        ConsumerInfo(consumer="b", incarnation=1, connected=True, segments=[], idle="no segment"),
    ]
    of = subscription("orders", "billing")
    cluster.subscriptions.append(msgspec.structs.replace(of, segments=segments, consumers=consumers))
    shown = [line.split() for line in invoke("subscription", "describe", "orders", "billing").stdout.splitlines()]

    assert ["3", "shared", "7", "9", "~1"] in shown
    assert ["3[0-7]", "granted", "7", "9", "~1", "a", "2"] in shown
    assert ["3[8-15]", "waiting", "9", "9", "0"] in shown
    assert ["a", "yes", "4,", "3[0-7]"] in shown
    assert ["b", "yes", "none:", "no", "segment"] in shown
    assert invoke("subscription", "list").stdout.splitlines()[-1].split()[-1] == "~1"
