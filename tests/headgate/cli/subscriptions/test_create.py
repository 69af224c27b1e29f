"""`headgate subscription create`: requests, output and rejected arguments."""

from typing import Any

import pytest

from headgate.protocol.requests import CreateSubscription, SetDeliveryPolicy
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, segment, topic


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), {"subscription_type": "STREAM"}),
        (("--type", "queue", "--from", "earliest"), {"subscription_type": "QUEUE", "start": "earliest"}),
        (
            ("--from", "2026-01-01T00:00:00Z", "--if-not-exists"),
            {"subscription_type": "STREAM", "positions": [(0, 1_767_225_600_000)], "topic_id": 1, "if_absent": True},
        ),
    ],
)
def test_the_options_reach_the_client(
    words: tuple[str, ...], wanted: dict[str, Any], invoke: Invoke, cluster: FakeCluster
) -> None:
    cluster.topics["orders"] = topic("orders", segment(0, 0, 65_535))

    result = invoke("subscription", "create", "orders", "audit", *words)

    assert result.exit_code == 0, result.stderr
    assert cluster.calls == [CreateSubscription("orders", "audit", token="", **wanted)]
    kind = wanted["subscription_type"].lower()
    assert result.stderr == f"subscription audit of orders: {kind}, order strict, 11 unacknowledged records\n"


def test_the_limit_of_processing_is_set_once_it_exists(invoke: Invoke, cluster: FakeCluster) -> None:
    cluster.topics["orders"] = topic("orders", segment(0, 0, 65_535))

    invoke("subscription", "create", "orders", "audit", "--max-processing", "90")

    assert SetDeliveryPolicy("orders", "audit", token="", max_processing_ms=90_000) == cluster.calls[1]
