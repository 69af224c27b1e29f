"""Which acknowledgements count, rule by rule."""

import pytest

from headgate.model import entries as e
from headgate.model.positions import OffsetRanges
from headgate.protocol.requests import AcknowledgeBatch, Acknowledgement
from shard.state.consumers import Holdings
from shard.state.subscription import Subscription
from shard.subscriptions.acknowledgements import acknowledgeable_end, judge
from tests.coordinator.conftest import Lead
from tests.support.worlds.command_shard import imported_topic
from tests.support.worlds.subscription_environment import CoordinatorHarness


@pytest.fixture
async def harness(request: pytest.FixtureRequest, lead: Lead) -> CoordinatorHarness:
    """Consumer ada holds two segments with five records each; the parameter is the subscription type."""
    return lead("ada", segments=2, records=5, type=getattr(request, "param", "STREAM"))


async def test_an_acknowledgement_of_a_holder_counts(harness: CoordinatorHarness) -> None:
    assert harness.acknowledge("ada", 0, 5) is None
    assert 5 == harness.subscription.position(0)


@pytest.mark.parametrize("harness", ["CHECKPOINT"], indirect=True)
async def test_rule_1_checkpoint_acknowledges_nothing(harness: CoordinatorHarness) -> None:
    assert "CHECKPOINT" in harness.acknowledge("ada", 0, 5)


async def test_rule_2_an_unregistered_consumer_is_rejected(harness: CoordinatorHarness) -> None:
    assert "not registered" in harness.acknowledge("eve", 0, 5)


async def test_rule_2_another_incarnation_is_rejected(harness: CoordinatorHarness) -> None:
    assert "now incarnation 1" in harness.acknowledge("ada", 0, 5, incarnation=0)
    assert "now incarnation 1" in harness.acknowledge("ada", 0, 5, incarnation=2)


async def test_rule_3_an_older_generation_is_rejected(harness: CoordinatorHarness) -> None:
    generation = harness.subscription.holdings[0].generation
    harness.seek({0: 0})

    assert "generation" in harness.acknowledge("ada", 0, 5, generation=generation)
    assert 0 == harness.subscription.position(0)


class CountedHoldings(Holdings):
    """Counts how often all its items are read."""

    reads = 0

    def items(self):
        self.reads += 1
        return super().items()


async def test_rule_3_the_holders_are_looked_up_once_for_all_rejections_of_a_batch(harness: CoordinatorHarness) -> None:
    """A batch of thousands of late acknowledgements must not read thousands of holdings for each of them."""
    held = harness.subscription.holdings = CountedHoldings(harness.subscription.holdings)
    parts = [Acknowledgement(n % 3, 99, 0, 1) for n in range(50)]
    batch = AcknowledgeBatch(
        topic="orders", subscription="billing", consumer="ada", incarnation=1, acknowledgements=parts
    )
    rejected = judge(harness.subscription, harness.topic, batch).rejected

    assert (50, 1) == (len(rejected), held.reads)
    assert (2, "segment 2 is held by no consumer, not by 'ada' at generation 99") == rejected[2]


async def test_rule_3_a_segment_of_another_consumer_is_rejected(harness: CoordinatorHarness) -> None:
    harness.register("bob")
    harness.confirm("ada", 1)

    assert {0: "ada", 1: "bob"} == harness.holders()
    assert "held by 'bob'" in harness.acknowledge("ada", 1, 5)


async def test_rule_3_a_segment_without_a_holder_is_rejected(harness: CoordinatorHarness) -> None:
    assert "held by no consumer" in harness.acknowledge("ada", 7, 5, generation=1)


async def test_rule_3_a_revoked_holder_may_still_acknowledge(harness: CoordinatorHarness) -> None:
    harness.register("bob")
    assert harness.subscription.holdings[1].revoked_at_ms is not None

    assert harness.acknowledge("ada", 1, 3) is None


async def test_rule_4_an_end_beyond_the_last_record_is_rejected(harness: CoordinatorHarness) -> None:
    assert "ends at 5" in harness.acknowledge("ada", 0, 6)
    assert 0 == harness.subscription.position(0)


@pytest.mark.parametrize(("positions", "ends"), [("offsets", [1, None]), ("opaque", [1, 1])])
def test_rule_4_the_end_of_a_segment_at_an_external_source(positions: e.Positions, ends: list[int | None]) -> None:
    sealed = e.ImportedSegment(segment=0, label="a", end_offset=1)
    topic = imported_topic(sealed, e.ImportedSegment(segment=1, label="b", parents=[0]), positions=positions)
    assert ends == [acknowledgeable_end(topic, segment) for segment in (0, 1)]
    ids = {"topic_id": 1, "subscription_id": 2}
    created = e.SubscriptionCreated(**ids, subscription="s", subscription_type="STREAM", order="none", positions={})
    subscription = Subscription.created(created, "orders")
    subscription.apply(e.ConsumerRegistered(**ids, consumer="ada", incarnation=1, client_id="c"), 0)
    subscription.apply(e.SegmentGranted(**ids, segment=1, consumer="ada", generation=1), 0)
    judged = judge(subscription, topic, of_ada([Acknowledgement(1, 1, 0, 7)], {}, 1))
    assert (positions == "offsets") == (not judged.rejected)


@pytest.mark.parametrize("harness", ["QUEUE"], indirect=True)
async def test_rule_5_a_queue_range_has_at_least_one_record(harness: CoordinatorHarness) -> None:
    assert "empty" in harness.acknowledge("ada", 0, 3, first_offset=3)
    assert harness.acknowledge("ada", 0, 3, first_offset=2) is None
    assert {0: OffsetRanges([(2, 3)])} == harness.subscription.progress.acknowledged_ranges


async def test_rule_5_stream_is_cumulative_and_never_goes_back(harness: CoordinatorHarness) -> None:
    assert harness.acknowledge("ada", 0, 4, first_offset=3) is None
    assert harness.acknowledge("ada", 0, 2) is None

    assert 4 == harness.subscription.position(0)
    assert [e.AcknowledgedRange(0, 0, 4)] == harness.proposed(e.RecordsAcknowledged)[0].ranges


def of_ada(acknowledged: list[Acknowledgement], checkpoints: dict[int, str], number: int) -> AcknowledgeBatch:
    known = {"topic": "orders", "subscription": "billing", "consumer": "ada", "incarnation": 1}
    return AcknowledgeBatch(**known, acknowledgements=acknowledged, checkpoints=checkpoints, number=number)


async def test_a_batch_has_one_entry_with_what_counts(harness: CoordinatorHarness) -> None:
    generation = harness.subscription.holdings[0].generation
    acknowledged = [Acknowledgement(1, generation, 0, 5), Acknowledgement(0, generation, 0, 5)]
    batch = of_ada(acknowledged, {0: "here", 1: "there", 2: "elsewhere"}, 3)
    judgement = judge(harness.subscription, harness.topic, batch)

    what = {"ranges": [e.AcknowledgedRange(0, 0, 5)], "checkpoints": {0: e.Checkpoint("here", generation, 3)}}
    assert e.RecordsAcknowledged(topic_id=1, subscription_id=2, seek_generation=0, **what) == judgement.entry
    assert [0] == [index for index, _ in judgement.rejected]


@pytest.mark.parametrize(
    ("generations_later", "number", "counts"),
    [(0, 4, True), (0, 3, False), (0, 2, False), (-1, 9, True)],
    ids=["later batch", "same batch", "late copy", "first batch of a later grant"],
)
async def test_a_late_copy_of_a_batch_does_not_replace_the_checkpoint_of_a_later_one(
    generations_later: int, number: int, *, counts: bool, harness: CoordinatorHarness
) -> None:
    generation = harness.subscription.holdings[0].generation
    harness.subscription.progress.checkpoints[0] = e.Checkpoint("known", generation + generations_later, 3)
    batch = of_ada([Acknowledgement(0, generation, 0, 5)], {0: "given"}, number)
    entry = judge(harness.subscription, harness.topic, batch).entry

    assert entry.checkpoints == ({0: e.Checkpoint("given", generation, number)} if counts else {})


async def test_a_batch_without_a_valid_acknowledgement_has_no_entry(harness: CoordinatorHarness) -> None:
    assert harness.acknowledge("ada", 0, 6) is not None

    assert [] == harness.proposed(e.RecordsAcknowledged)
