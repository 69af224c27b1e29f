"""`headgate consumer`: tables, documents, requests and questions."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from headgate import ConsumerInfo
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, segment, subscription, topic


@pytest.fixture(autouse=True)
def orders(cluster: FakeCluster) -> None:
    """Create two subscriptions of topic orders; billing has two consumers."""
    cluster.topics["orders"] = topic("orders", segment(0, 0, 65_535))
    one = ConsumerInfo(
        consumer="reader-1",
        incarnation=1,
        connected=True,
        segments=(0,),
        host="node-a",
        version="0.1.0",
        registered_at_ms=1_767_225_600_000,
        last_heard_age_ms=2_600,
    )
    two = ConsumerInfo(
        consumer="reader-2",
        incarnation=1,
        connected=False,
        segments=(),
        idle="it is disconnected",
        disconnected_at_ms=5,
    )
    cluster.subscriptions += [
        replace(subscription("orders", "billing"), consumers=(one, two)),
        replace(subscription("orders", "audit"), consumers=()),
    ]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith("orders")]


@pytest.mark.parametrize("words", [(), ("orders",), ("orders", "billing")])
def test_consumers_are_listed(words: tuple[str, ...], invoke: Invoke) -> None:
    result = invoke("consumer", "list", *words)

    assert rows(result.stdout) == [
        ["orders", "billing", "reader-1", "connected", "0"],
        ["orders", "billing", "reader-2", "disconnected", "none:", "it", "is", "disconnected"],
    ]


def test_the_list_is_one_json_document(invoke: Invoke) -> None:
    found = json.loads(invoke("consumer", "list", "orders", "billing", "--json").stdout)

    assert [("billing", "reader-1", 2_600), ("billing", "reader-2", None)] == [
        (each["subscription"], each["consumer"], each["last_heard_age_ms"]) for each in found
    ]


def test_a_subscription_without_consumers_is_said(invoke: Invoke) -> None:
    assert "no consumers" in invoke("consumer", "list", "orders", "audit").stderr


def test_an_eviction_is_requested_and_reported(invoke: Invoke, cluster: FakeCluster) -> None:
    result = invoke("consumer", "evict", "orders", "billing", "reader-1", "--yes")

    assert result.stderr == "consumer reader-1 of subscription billing of orders evicted\n"
    assert cluster.calls == [("evict_consumer", "orders", "billing", "reader-1")]
    document = json.loads(invoke("consumer", "evict", "orders", "billing", "reader-1", "--yes", "--json").stdout)
    assert document == {"topic": "orders", "subscription": "billing", "consumer": "reader-1", "evicted": True}


def test_a_dry_run_of_an_eviction_shows_what_would_go(invoke: Invoke, cluster: FakeCluster) -> None:
    result = invoke("consumer", "evict", "orders", "billing", "reader-1", "--dry-run")

    assert "connected on node-a; segments: 0" in result.stdout
    assert "dry run: consumer reader-1 of subscription billing of orders was not evicted" in result.stderr
    assert cluster.calls == []


def test_an_unknown_consumer_is_answered_with_the_names(invoke: Invoke) -> None:
    result = invoke("consumer", "evict", "orders", "billing", "reader-9", "--dry-run")

    assert result.exit_code == 1
    assert "has no consumer 'reader-9'; consumers: reader-1, reader-2" in result.stderr
