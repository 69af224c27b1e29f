"""Consumers that live and make no progress lose their segments to others, with the real coordinator."""

import pytest

from headgate.model import entries as e
from headgate.protocol.requests import BeginDeliveries, BegunRecord, ExplainSubscription
from shard.steps import complete
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness

LIMIT_SECONDS = 60


def limited(lead: Lead, *consumers: str, segments: int = 2, **more) -> CoordinatorHarness:
    harness = lead(*consumers, segments=segments, **more)
    harness.confirm_all()
    policy = e.DeliveryPolicy(max_processing_ms=LIMIT_SECONDS * 1000)
    harness.propose(e.DeliveryPolicySet(topic_id=1, subscription_id=2, policy=policy, token="p"))
    harness.pushes.clear()
    return harness


def stalls(harness: CoordinatorHarness) -> list[str]:
    return [event.outcome for event in harness.observer.events if type(event).__name__ == "SegmentStalled"]


def sentences(harness: CoordinatorHarness) -> str:
    request = ExplainSubscription(topic="orders", subscription="billing")
    explanation = complete(harness.coordinator.explain(request)).explanation
    return " ".join(text for each in (*explanation.segments, *explanation.consumers) for text in each.sentences)


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
async def test_the_segment_of_a_silent_holder_goes_to_another_one_with_a_higher_generation(lead: Lead, kind: str):
    harness = limited(lead, "ada", "ben", type=kind)
    assert {0: "ada", 1: "ben"} == harness.holders()
    before = harness.subscription.holdings[0].generation
    harness.store(0, 5)
    harness.acknowledge("ada", 0, 2)
    await harness.run_with_heartbeats(LIMIT_SECONDS - 10)
    assert {0: "ada", 1: "ben"} == harness.holders()
    assert "ada has acknowledged nothing for 40 s" in sentences(harness)
    assert "and is at offset 2" in sentences(harness)
    await harness.run_with_heartbeats(20)

    assert {0: "ben", 1: "ben"} == harness.holders()
    assert harness.subscription.holdings[0].generation > before
    released = harness.proposed(e.SegmentReleased)[-1]
    assert (0, before, "stalled") == (released.segment, released.generation, released.reason)
    (lost,) = [push for push in harness.take_pushes("ada") if push.revoked]
    assert [(0, before, True)] == [(each.segment, each.generation, each.final) for each in lost.revoked]
    assert harness.acknowledge("ada", 0, 5, generation=before) is not None
    assert ["moved"] == stalls(harness)
    assert "ada has no segment: it made no progress for too long" in sentences(harness)


async def test_progress_idleness_and_another_leader_of_a_quiet_subscription_stall_nothing(lead: Lead):
    harness = limited(lead, "ada", "ben")
    await harness.run_with_heartbeats(5 * LIMIT_SECONDS)
    harness.store(0, 9)
    await harness.run_with_heartbeats(LIMIT_SECONDS - 15)
    for offset in range(1, 9):
        harness.acknowledge("ada", 0, offset)
        await harness.run_with_heartbeats(LIMIT_SECONDS - 15)
    await harness.change_leader()
    await harness.run_with_heartbeats(5)

    assert {0: "ada", 1: "ben"} == harness.holders()
    assert [] == stalls(harness)
    assert "ada has acknowledged nothing" in sentences(harness)
    harness.propose(e.DeliveryPolicySet(topic_id=1, subscription_id=2, policy=e.DeliveryPolicy(), token="none"))
    await harness.run_with_heartbeats(5)
    assert "has acknowledged nothing" not in sentences(harness)


async def test_a_clock_that_is_set_takes_no_segment_away(lead: Lead):
    harness = limited(lead, "ada", "ben")
    await harness.run_with_heartbeats(5)
    harness.store(0, 5)
    await harness.run_with_heartbeats(20)
    harness.clock_ahead_ms = 3_600_000
    await harness.run_with_heartbeats(LIMIT_SECONDS - 25)
    assert [] == stalls(harness)
    await harness.run_with_heartbeats(10)
    assert ["moved"] == stalls(harness)


async def test_changes_of_the_leader_do_not_renew_the_limit(lead: Lead):
    harness = limited(lead, "ada", "ben")
    harness.store(0, 5)
    for _ in range(3):
        await harness.run_with_heartbeats(20)
        await harness.change_leader()
    await harness.run_with_heartbeats(20)

    assert {0: "ben", 1: "ben"} == harness.holders()


@pytest.mark.parametrize("new_leader", [False, True])
async def test_a_split_shortens_no_limit_and_renews_it_only_for_a_new_leader(lead: Lead, new_leader: bool):
    """How old a record of a sealed segment is, only a leader knows that has seen it before."""
    harness = limited(lead, "ada", "ben")
    await harness.run_with_heartbeats(2 * LIMIT_SECONDS)
    harness.store(0, 5)
    await harness.run_with_heartbeats(LIMIT_SECONDS - 20)
    harness.split(0)
    if new_leader:
        await harness.change_leader()
    for moved in (False, not new_leader, True):
        assert ["moved"] * moved == stalls(harness)
        await harness.run_with_heartbeats(35)


async def test_a_consumer_keeps_what_it_reads_and_gets_more_only_after_progress_or_a_request(lead: Lead):
    harness = limited(lead, "ada", "ben", segments=4)
    assert {0: "ada", 1: "ada", 2: "ben", 3: "ben"} == harness.holders()
    harness.store(0, 5)
    await harness.run_with_heartbeats(LIMIT_SECONDS + 20)
    assert {0: "ben", 1: "ada", 2: "ben", 3: "ben"} == harness.holders()
    await harness.change_leader()
    await harness.run_with_heartbeats(5)
    assert {0: "ben", 1: "ada", 2: "ben", 3: "ben"} == harness.holders(), "the next leader knows it"
    harness.acknowledge("ben", 0, 5)
    harness.heartbeat("ada", ready=True)
    await harness.run(2)
    harness.confirm_all()

    assert 2 == list(harness.holders().values()).count("ada")
    assert harness.subscription.consumers["ada"].stalled_at_ms is None


async def test_a_program_that_asks_just_after_it_has_lost_a_segment_gets_one_again(lead: Lead):
    harness = limited(lead, "ada", "ben", segments=4)
    harness.store(0, 5)
    while not stalls(harness):
        await harness.run_with_heartbeats(1)
    for _ in range(3):
        harness.heartbeat("ada", ready=True)
    await harness.run(5)
    harness.confirm_all()

    assert 2 == list(harness.holders().values()).count("ada")
    assert 1 == len(harness.proposed(e.ConsumerReconnected)), "what is known is not stored again"


async def test_without_another_consumer_the_holder_keeps_its_segment_and_is_reported_once(lead: Lead):
    harness = limited(lead, "ada")
    harness.store(0, 5)
    await harness.run_with_heartbeats(2 * LIMIT_SECONDS)
    harness.split(0)
    await harness.run_with_heartbeats(2 * LIMIT_SECONDS)
    assert (["kept"], {0: "ada", 1: "ada"}) == (stalls(harness), harness.holders())
    harness.join("ben")
    harness.confirm_all()
    await harness.run_with_heartbeats(5)

    assert "ben" == harness.holders()[0]
    assert ["kept", "moved"] == stalls(harness)


async def test_if_all_consumers_have_stalled_they_get_further_segments(lead: Lead):
    harness = limited(lead, "ada")
    harness.subscription.consumers.set_stalled("ada", 1)
    harness.split(0)

    assert {1, 2, 3} == set(harness.holders())


async def test_the_records_that_a_stalled_holder_of_a_queue_had_begun_have_failed(lead: Lead):
    harness = limited(lead, "ada", "ben", type="QUEUE")
    harness.store(0, 5)
    generation = harness.subscription.holdings[0].generation
    begun = BegunRecord(0, generation, 0, 3, 1)
    request = BeginDeliveries(topic="orders", subscription="billing", consumer="ada", incarnation=1, records=[begun])
    await harness.run_with_heartbeats(LIMIT_SECONDS - 20)
    harness.coordinator.deliveries.begin(request)
    await harness.run_with_heartbeats(LIMIT_SECONDS - 10)
    assert "ada" == harness.holders()[0], "to begin a record is progress"
    await harness.run_with_heartbeats(20)

    assert "ben" == harness.holders()[0]
    (failed,) = harness.subscription.redelivery.failed
    assert (1, "its consumer made no progress for too long") == (failed.failures, failed.reason)


@pytest.mark.parametrize(
    ("then", "oldest"),
    {
        "nothing else": (lambda _: None, {0: 7, 1: None}),
        "another holding": (lambda harness: harness.heartbeat("ada", unhandled=[(0, 9, 7)]), {}),
        "no holding": (lambda harness: harness.heartbeat("ada", unhandled=[(9, 1, 7)]), {}),
        "everything is read": (lambda harness: harness.heartbeat("ada", unhandled=[]), {}),
        "it is away": (lambda harness: harness.disconnect("anonymous/client-ada"), {}),
        "it has left": (lambda harness: harness.leave("ada"), {}),
        "another instance joins": (lambda harness: harness.register("ada", incarnation=2), {}),
    }.values(),
)
async def test_the_holder_of_an_external_segment_says_which_record_is_the_oldest(lead: Lead, then, oldest):
    harness = lead("ada", segments=2)
    held = {segment: harness.subscription.holdings[segment].generation for segment in (0, 1)}
    harness.heartbeat("ada", unhandled=[(0, held[0], 7), (1, held[1], None)])
    then(harness)

    assert oldest == harness.coordinator.members.oldest_unhandled_ms()
    assert harness.subscription.consumers.keys() >= harness.coordinator.members.last_heard_age_ms().keys()
