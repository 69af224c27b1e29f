"""`headgate subscription seek` and `set`: requests, output and rejected arguments."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.model.entries import SubscriptionType
from headgate.protocol.requests import SeekSubscription, SetDeliveryPolicy
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, subscription, topic


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--to", "earliest"), {"to": "earliest"}),
        (("--to", "latest", "--dry-run"), {"to": "latest", "dry_run": True}),
        (("--position", "3=1200", "--position", "4=0"), {"positions": [(3, 1200), (4, 0)]}),
    ],
)
def test_each_kind_of_target_reaches_the_client(
    words: tuple[str, ...], wanted: dict[str, Any], invoke: Invoke, cluster: FakeCluster
) -> None:
    result = invoke("subscription", "seek", "orders", "billing", *words, "--yes")

    assert result.exit_code == 0, result.stderr
    assert cluster.calls == [SeekSubscription("orders", "billing", token="", **wanted)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "give either --to or --position"),
        (("--to", "latest", "--position", "0=1"), "give either --to or --position"),
        (("--position", "3"), "write for example 3=1200"),
        (("--position", "3=-1"), "write for example 3=1200"),
        (("--position", "3=²"), "write for example 3=1200"),
        (("--position", f"3={2**63}"), "segment and offset must not exceed"),
        (("--position", "3=1", "--position", "3=2"), "names a segment twice"),
    ],
)
def test_an_invalid_target_is_rejected_without_a_request(
    words: tuple[str, ...], reason: str, invoke: Invoke, cluster: FakeCluster
) -> None:
    result = invoke("subscription", "seek", "orders", "billing", *words)

    assert result.exit_code == 2
    assert reason in result.stderr
    assert cluster.calls == []


def test_a_seek_shows_moves_and_their_effects(invoke: Invoke, cluster: FakeCluster) -> None:
    result = invoke("subscription", "seek", "orders", "billing", "--to", "earliest", "--yes")
    rows = [line.strip().split(maxsplit=4) for line in result.stdout.splitlines()]

    assert ["0", "5", "2", "12", "3 delivered again"] in rows
    assert ["1", "0", "4", "4", "4 skipped"] in rows
    assert ["2", "3", "3", "9", "unchanged"] in rows
    assert "moved (seek generation 7)" in result.stderr


def test_set_shows_the_delivery_policy(invoke: Invoke, cluster: FakeCluster) -> None:
    cluster.topics["dead"] = topic("dead")
    cluster.subscriptions.append(replace(subscription("o", "jobs"), type=SubscriptionType.QUEUE))
    result = invoke("subscription", "set", "o", "jobs", "--max-deliveries", "3", "--dead-letter", "dead")
    options = "--ack-timeout", "0", "--max-processing", "90", "--json"
    document = json.loads(invoke("subscription", "set", "o", "jobs", *options).stdout)

    assert "subscription jobs of o: dead after 3 deliveries, dead letters in dead" in result.stderr
    assert [
        SetDeliveryPolicy("o", "jobs", token="", max_deliveries=3, dead_letter_topic="dead", subscription_id=5),
        SetDeliveryPolicy("o", "jobs", token="", ack_timeout_ms=0, max_processing_ms=90_000),
    ] == cluster.calls
    assert "policy" in document
