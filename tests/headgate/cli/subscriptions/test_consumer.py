"""`headgate consumer`: tables, documents, requests and questions."""

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
    where = {"host": "node-a", "version": "0.1.0", "registered_at_ms": 1_767_225_600_000, "last_heard_age_ms": 2_600}
    one = ConsumerInfo(consumer="reader-1", incarnation=1, connected=True, segments=(0,), **where)
    two = ConsumerInfo(consumer="reader-2", incarnation=1, connected=False, segments=(), idle="it is disconnected")
    cluster.subscriptions += [
        replace(subscription("orders", "billing"), consumers=(one, two)),
        replace(subscription("orders", "audit"), consumers=()),
    ]


def test_consumers_are_listed_with_where_they_run_and_when_they_were_heard(invoke: Invoke) -> None:
    plain, verbose = (invoke("consumer", "list", "orders", *more).stdout.splitlines() for more in ((), ("--verbose",)))

    assert ["orders", "billing", "reader-1", "connected", "0"] == plain[2].split()
    assert ["reader-1", "connected", "node-a", "0.1.0", "2026-01-01", "00:00", "3", "s", "0"] == verbose[2].split()[2:]
    assert ["reader-2", "disconnected", "-", "-", "-", "-", "none:", "it"] == verbose[3].split()[2:10]
    found = json.loads(invoke("consumer", "list", "orders", "billing", "--json").stdout)
    assert [("orders", "billing", "reader-1"), ("orders", "billing", "reader-2")] == [
        (*each.values(),)[:3] for each in found
    ]


def test_a_subscription_without_consumers_is_said(invoke: Invoke) -> None:
    assert "no consumers" in invoke("consumer", "list", "orders", "audit").stderr


def test_a_dry_run_of_an_eviction_shows_where_the_program_runs(invoke: Invoke) -> None:
    result = invoke("consumer", "evict", "orders", "billing", "reader-1", "--dry-run")
    assert "connected on node-a; segments: 0" in result.stdout


def test_an_unknown_consumer_is_answered_with_the_names(invoke: Invoke) -> None:
    result = invoke("consumer", "evict", "orders", "billing", "reader-9", "--dry-run")

    assert result.exit_code == 1
    assert "has no consumer 'reader-9'; consumers: reader-1, reader-2" in result.stderr
