"""Which segments nothing reads at present."""

from dataclasses import replace

import pytest

from shard.reporting.progress import unread_segments
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness


@pytest.fixture
async def harness(lead: Lead) -> CoordinatorHarness:
    """Consumer ada holds two segments with five records each."""
    return lead("ada", segments=2, records=5)


def unread(harness: CoordinatorHarness, consumer: str = "ada") -> int:
    known = [(segment, holding.generation) for segment, holding in harness.subscription.holdings.items()]
    return unread_segments(harness.subscription, harness.topic, consumer, known)


async def test_a_grant_that_is_on_its_way_counts_and_so_does_a_segment_that_moves(harness: CoordinatorHarness) -> None:
    assert 2 == unread_segments(harness.subscription, harness.topic, "ada", [])
    assert 0 == unread(harness)
    harness.join("bob")
    assert 1 == unread(harness), "one of them is revoked from ada"


async def test_a_holder_that_has_gone_counts_until_its_records_are_acknowledged(harness: CoordinatorHarness) -> None:
    assert 0 == unread(harness, "bob"), "ada reads them"
    consumers = harness.subscription.consumers
    consumers["ada"] = replace(consumers["ada"], disconnected_at_ms=0)
    assert 2 == unread(harness, "bob")
    harness.subscription.progress.positions = {0: 5}
    assert 1 == unread(harness, "bob")


async def test_blocked_children_count_once_they_have_records(harness: CoordinatorHarness) -> None:
    harness.split(0)
    assert 0 == unread(harness)
    harness.store(2, 1)
    assert 1 == unread(harness)
