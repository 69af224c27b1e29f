"""The leader's veto against a claim that a segment is drained, rule by rule."""

import pytest

from headgate.model import entries as e
from shard.state.subscription import Subscription
from shard.subscriptions.two_witnesses import DrainClaim, contradiction
from tests.support.worlds.command_shard import imported_topic
from tests.support.worlds.subscription_environment import CoordinatorHarness

IDS = {"topic_id": 1, "subscription_id": 2, "seek_generation": 0}


def acknowledged(harness: CoordinatorHarness, *ranges: e.AcknowledgedRange) -> None:
    harness.propose(e.RecordsAcknowledged(**IDS, ranges=list(ranges)))


def judged(harness: CoordinatorHarness, claim: DrainClaim, segment: int = 0) -> str | None:
    return contradiction(harness.subscription, harness.topic, segment, claim)


async def sealed(kind: str = "STREAM") -> CoordinatorHarness:
    """Segment 0 has six records and is sealed."""
    harness = CoordinatorHarness(type=kind)
    harness.store(0, 6)
    harness.split(0)
    return harness


async def test_rule_1_the_end_must_be_the_leaders_own() -> None:
    harness = await sealed()
    acknowledged(harness, e.AcknowledgedRange(0, 0, 6))

    assert judged(harness, DrainClaim(6)) is None
    assert judged(harness, DrainClaim(5)) == (
        "Spark says that it is drained to 5; this leader knows 6 of 6 as acknowledged"
    )
    assert judged(harness, DrainClaim(0), segment=1) == (
        "Spark says that it is drained to 0; this leader knows 0 of an open segment as acknowledged"
    )


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
async def test_rule_2_every_record_must_be_acknowledged_in_every_bucket(kind: str) -> None:
    harness = await sealed(kind)
    for wanted in (
        e.AcknowledgedRange(0, 0, 2),
        e.AcknowledgedRange(0, 0 if kind == "STREAM" else 3, 6, 0, 8),
        e.AcknowledgedRange(0, 0, 5, 8, 16),
    ):
        assert "Spark says that it is drained to 6; this leader knows " in str(judged(harness, DrainClaim(6)))
        acknowledged(harness, wanted)
    assert "knows 5 of 6" in str(judged(harness, DrainClaim(6))) or kind == "QUEUE"
    acknowledged(harness, e.AcknowledgedRange(0, 2, 6))

    assert judged(harness, DrainClaim(6)) is None


async def test_rule_2_acknowledgements_from_before_a_seek_do_not_count() -> None:
    harness = await sealed()
    acknowledged(harness, e.AcknowledgedRange(0, 0, 6))
    harness.seek({0: 1})

    assert "knows 1 of 6" in str(judged(harness, DrainClaim(6)))


@pytest.mark.parametrize(
    ("positions", "position", "claim", "agrees"),
    [
        pytest.param("offsets", 0, DrainClaim(10, from_tables=True), True, id="acknowledgements in a table"),
        pytest.param("offsets", 0, DrainClaim(11, from_tables=True), False, id="another end than the source's"),
        pytest.param("offsets", 9, DrainClaim(10), False, id="acknowledged to headgate in part"),
        pytest.param("offsets", 10, DrainClaim(10), True, id="acknowledged to headgate"),
        pytest.param("opaque", 0, DrainClaim(1), False, id="not read to its end"),
        pytest.param("opaque", 1, DrainClaim(1), True, id="read to its end"),
        pytest.param(
            "opaque", 0, DrainClaim(1, from_tables=True), False, id="no table can acknowledge opaque positions"
        ),
    ],
)
def test_rule_3_only_a_table_of_an_external_topic_replaces_own_acknowledgements(
    positions: e.Positions, position: int, claim: DrainClaim, *, agrees: bool
) -> None:
    segment = e.ImportedSegment(segment=0, label="a", end_offset=10 if positions == "offsets" else 1)
    topic = imported_topic(segment, positions=positions)
    subscription = Subscription(topic.topic_id, "t", 3, "s", e.SubscriptionType.STREAM, "strict")
    subscription.progress.positions[0] = position

    assert (contradiction(subscription, topic, 0, claim) is None) == agrees


async def test_rule_3_no_table_acknowledges_records_that_headgate_stores() -> None:
    harness = await sealed()
    acknowledged(harness, e.AcknowledgedRange(0, 0, 6))

    assert "which this topic cannot have" in str(judged(harness, DrainClaim(6, from_tables=True)))
