"""One subscription on its leader: sessions and handovers."""

import pytest

from headgate.model import entries as e
from headgate.protocol.replies import AssignmentChanged, ConsumerFenced, Done, Push, Registered, Revocation
from headgate.protocol.requests import EvictConsumer
from metrics import events
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness


def granted(answer: Registered) -> list[int]:
    return [grant.segment for grant in answer.grants]


# Registration


async def test_a_grant_has_the_start_and_the_end_of_a_sealed_segment(harness: CoordinatorHarness) -> None:
    harness.store(0, 5)
    harness.register("ada")
    harness.acknowledge("ada", 0, 3)
    harness.split(0)
    grant = harness.register("ada").grants[0]

    part = grant.segment, grant.first_hash, grant.last_hash, grant.start_offset, grant.end_offset
    assert (0, 0x0000, 0x3FFF, 3, 5) == part
    assert harness.topic.tails[0].chunk_of(3) == grant.start_chunk


@pytest.mark.parametrize("segment", ["empty", "idle"])
async def test_a_reader_whose_next_record_does_not_exist_begins_after_the_newest_chunk(
    harness: CoordinatorHarness, segment: str
) -> None:
    """A reader of an empty segment read the whole ledger of its shard: 16 s for 10 000 chunks."""
    harness.register("ada")
    if segment == "idle":
        harness.store(0, 5)
        harness.acknowledge("ada", 0, 5)
    for _ in range(100):
        harness.propose()
    grant = harness.register("ada").grants[0]

    assert (5 if segment == "idle" else 0) == grant.start_offset
    assert harness.durable + 1 == grant.start_chunk
    harness.store(0, 1)
    assert harness.durable == grant.start_chunk


async def test_a_second_consumer_gets_segments_only_after_the_first_has_confirmed(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    answer = harness.register("bob")
    assert [] == granted(answer)
    [push] = harness.take_pushes("ada")
    assert [Revocation(segment=2, generation=3), Revocation(segment=3, generation=4)] == push.revoked
    assert [] == push.granted
    assert not harness.coordinator.reconciler.handovers_complete

    assert ["bob"] == [each.next_owner for each in harness.coordinator.reconciler.holders()[3]]
    harness.confirm("ada", 3)
    assert {0: "ada", 1: "ada", 3: "bob"} == harness.holders()
    assert not harness.coordinator.reconciler.handovers_complete
    harness.confirm("ada", 2)
    assert {0: "ada", 1: "ada", 2: "bob", 3: "bob"} == harness.holders()
    assert harness.coordinator.reconciler.handovers_complete
    assert {None} == {each.next_owner for [each] in harness.coordinator.reconciler.holders().values()}
    assert [(3, 5), (2, 6)] == [(g.segment, g.generation) for push in harness.take_pushes("bob") for g in push.granted]
    assert [] == harness.take_pushes("ada")


async def test_a_seek_ends_the_revocations_that_wait_for_a_confirmation(harness: CoordinatorHarness) -> None:
    """Their time would end the grants that follow."""
    harness.join("ada", "bob")
    assert not harness.coordinator.reconciler.handovers_complete

    harness.seek({0: 0})
    assert harness.coordinator.reconciler.handovers_complete
    granted_again = {held: holding.generation for held, holding in harness.subscription.holdings.items()}
    await harness.run_with_heartbeats(100)
    assert granted_again == {held: holding.generation for held, holding in harness.subscription.holdings.items()}


async def test_what_a_message_says_is_proposed_before_it(lead: Lead) -> None:
    """The leader sends a message once all entries that were proposed before it are durable."""
    harness = lead("ada", segments=2)
    proposed: list[bool] = []

    def on_push(_: str, message: Push) -> None:
        known = harness.subscription.consumers.get(message.consumer)
        if isinstance(message, ConsumerFenced):
            proposed.append(known is None or known.incarnation != message.incarnation)
        else:
            granted = {(each.segment, each.generation) for each in message.granted}
            proposed.append(granted <= {(s, held.generation) for s, held in harness.subscription.holdings.items()})

    harness.on_push = on_push
    harness.join("bob", "cyd")
    harness.confirm_all()
    harness.register("bob", incarnation=2)
    evicted = EvictConsumer(topic="orders", subscription="billing", consumer="ada", token="t")
    harness.coordinator.evict(evicted)
    await harness.run(100)

    assert {} == harness.subscription.consumers
    assert {AssignmentChanged, ConsumerFenced} == {type(message) for _, message in harness.pushes}
    assert all(proposed)


async def test_a_deleted_subscription_notifies_its_consumers_and_one_that_leaves_gets_no_message(lead: Lead) -> None:
    harness = lead("ada", "bob")
    harness.leave("ada")
    assert [] == [each for each in harness.take_pushes("ada") if isinstance(each, ConsumerFenced)]
    harness.take_pushes("bob")
    harness.coordinator.members.subscription_deleted()

    assert ["the subscription was deleted"] == [each.reason for each in harness.take_pushes("bob")]
    assert ["left", "subscription_deleted"] == [each.reason for each in harness.observer.of(events.ConsumerRemoved)]


async def test_registering_again_omits_revoked_segments_and_revokes_them_again(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.pushes.clear()
    answer = harness.register("ada")

    assert [0, 1] == granted(answer)
    [push] = harness.take_pushes("ada")
    assert [2, 3] == [revocation.segment for revocation in push.revoked]
    assert not any(revocation.final for revocation in push.revoked)


# Leaving and disconnecting


async def test_a_command_evicts_a_consumer_that_runs(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.confirm_all()
    harness.take_pushes("ada")
    command = EvictConsumer(topic="orders", subscription="billing", consumer="ada", token="t")

    assert Done() == harness.coordinator.evict(command)
    assert {0: "bob", 1: "bob", 2: "bob", 3: "bob"} == harness.holders()
    removed = harness.proposed(e.ConsumerRemoved)[0]
    assert ("ada", "evicted", "t") == (removed.consumer, removed.reason, removed.token)
    assert "consumer 'ada' was evicted by a command" == harness.take_pushes("ada")[-1].reason
    assert "fenced" == harness.register("ada").verdict
    assert isinstance(harness.register("ada", incarnation=2), Registered)


async def test_an_eviction_of_an_unknown_consumer_names_the_consumers(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    command = EvictConsumer(topic="orders", subscription="billing", consumer="eve", token="t")
    refused = harness.coordinator.evict(command)

    assert "has no consumer 'eve'; consumers: ada, bob" in refused.reason


async def test_a_will_starts_the_grace_period_at_once_and_only_once(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    await harness.run(12)
    harness.disconnect("anonymous/client-ada")
    await harness.run(30)
    harness.disconnect("anonymous/client-ada")
    await harness.run(29)
    assert "ada" in harness.subscription.consumers, "the last heartbeat is longer ago, and does not count"
    await harness.run(2)

    assert {} == harness.subscription.consumers
    assert 1 == len(harness.proposed(e.ConsumerDisconnected))


async def test_client_presence_renews_connected_consumers_but_not_disconnected_ones(harness: CoordinatorHarness):
    harness.register("ada")
    await harness.run(14)
    harness.coordinator.members.client_connected("anonymous/client-ada")
    await harness.run(14)
    assert harness.subscription.consumers["ada"].disconnected_at_ms is None
    harness.disconnect("anonymous/client-ada")
    harness.coordinator.members.client_connected("anonymous/client-ada")
    await harness.run(61)

    assert {} == harness.subscription.consumers


async def test_a_heartbeat_of_an_unregistered_consumer_is_rejected(harness: CoordinatorHarness) -> None:
    rejected = harness.heartbeat("ada")

    assert "out_of_order" == rejected.verdict
    assert "register first" in rejected.reason
    harness.register("ada")
    assert "register first" in harness.heartbeat("ada", incarnation=2).reason


@pytest.mark.parametrize("stalled", [False, True])
async def test_what_is_revoked_goes_to_another_consumer_although_its_holder_could_keep_it(lead: Lead, stalled: bool):
    """What it had begun ends for nothing otherwise. A holder that has stalled since gets no further segment either."""
    harness = lead("zoe", segments=2, records=5, type="QUEUE")
    harness.join("bob")
    assert {0: "zoe"} == harness.holders()
    if stalled:
        harness.subscription.consumers.set_stalled("zoe", 1)
    harness.split(0)
    harness.confirm_all()

    assert "bob" == harness.holders()[1]


async def test_a_revocation_ends_with_its_holder_and_not_with_a_split(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.split(0)
    assert not harness.coordinator.reconciler.handovers_complete
    harness.leave("ada")
    assert harness.coordinator.reconciler.handovers_complete
    assert {"bob"} == set(harness.holders().values())


@pytest.mark.parametrize(
    ("consumer", "segment", "generation", "incarnation"),
    [("ada", 3, 3, 1), ("bob", 3, 4, 1), ("ada", 3, 4, 0), ("ada", 0, 1, 1), ("ada", 9, 1, 1), ("eve", 3, 4, 1)],
    ids=["older generation", "not the holder", "older incarnation", "not revoked", "no segment", "unknown consumer"],
)
async def test_a_confirmation_without_a_matching_revocation_changes_nothing(
    harness: CoordinatorHarness, consumer: str, segment: int, generation: int, incarnation: int
) -> None:
    harness.join("ada", "bob")
    before = len(harness.entries)

    assert isinstance(harness.confirm(consumer, segment, generation, incarnation=incarnation), Done)
    assert before == len(harness.entries)
