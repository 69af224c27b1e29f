"""One subscription on its leader: sessions and handovers."""

import asyncio

import pytest

from headgate.model import entries as e
from headgate.protocol import messages as m
from metrics import events
from shard.subscriptions.refusal import Refusal
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import START_MS, CoordinatorHarness

pytestmark = pytest.mark.looptime


@pytest.fixture
async def harness(lead: Lead) -> CoordinatorHarness:
    """A STREAM with four segments and no consumer."""
    return lead(segments=4)


def granted(answer: m.Registered) -> list[int]:
    return [grant.segment for grant in answer.grants]


# Registration


async def test_the_first_consumer_gets_all_grants_in_the_response_and_no_push(harness: CoordinatorHarness) -> None:
    harness.store(1, 3)
    answer = harness.register("ada")

    assert [0, 1, 2, 3] == granted(answer)
    assert [1, 2, 3, 4] == [grant.generation for grant in answer.grants]
    assert (5.0, harness.state.chunk) == (answer.heartbeat_interval_seconds, answer.head)
    assert [] == harness.pushes


async def test_a_grant_has_the_start_and_the_end_of_a_sealed_segment(harness: CoordinatorHarness) -> None:
    harness.store(0, 5)
    harness.register("ada")
    harness.acknowledge("ada", 0, 3)
    harness.split(0)
    grant = harness.register("ada").grants[0]

    assert (0, 0x0000, 0x3FFF, 3, 5) == (
        grant.segment,
        grant.first_hash,
        grant.last_hash,
        grant.start_offset,
        grant.end_offset,
    )
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
    assert [m.Revocation(segment=2, generation=3), m.Revocation(segment=3, generation=4)] == push.revoked
    assert [] == push.granted
    assert not harness.coordinator.handovers_complete

    harness.confirm("ada", 3)
    assert {0: "ada", 1: "ada", 3: "bob"} == harness.holders()
    assert not harness.coordinator.handovers_complete
    harness.confirm("ada", 2)
    assert {0: "ada", 1: "ada", 2: "bob", 3: "bob"} == harness.holders()
    assert harness.coordinator.handovers_complete
    assert [(3, 5), (2, 6)] == [(g.segment, g.generation) for push in harness.take_pushes("bob") for g in push.granted]
    assert [] == harness.take_pushes("ada")


async def test_messages_carry_the_leader_epoch_and_the_incarnation(harness: CoordinatorHarness) -> None:
    harness.register("ada", incarnation=7)
    harness.register("bob")
    [push] = harness.take_pushes("ada")

    assert ("orders", "billing", "ada", 7, harness.leader_epoch) == (
        push.topic,
        push.subscription,
        push.consumer,
        push.incarnation,
        push.leader_epoch,
    )


async def test_what_a_message_says_is_proposed_before_it(lead: Lead) -> None:
    """The leader sends a message once all entries that were proposed before it are durable."""
    harness = lead("ada", segments=2)
    proposed: list[bool] = []

    def on_push(_: str, message: m.Push) -> None:
        known = harness.subscription.consumers.get(message.consumer)
        if isinstance(message, m.ConsumerFenced):
            proposed.append(known is None or known.incarnation != message.incarnation)
        else:
            granted = {(each.segment, each.generation) for each in message.granted}
            proposed.append(granted <= {(s, held.generation) for s, held in harness.subscription.holdings.items()})

    harness.on_push = on_push
    harness.join("bob", "cyd")
    harness.confirm_all()
    harness.register("bob", incarnation=2)
    evicted = m.EvictConsumer(topic="orders", subscription="billing", consumer="ada", token="t")
    harness.coordinator.evict(evicted)
    await harness.run(100)

    assert {} == harness.subscription.consumers
    assert {m.AssignmentChanged, m.ConsumerFenced} == {type(message) for _, message in harness.pushes}
    assert all(proposed)


async def test_registering_again_moves_nothing_and_returns_all_grants(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    before = dict(harness.subscription.holdings)
    answer = harness.register("ada")

    assert [0, 1, 2, 3] == granted(answer)
    assert before == harness.subscription.holdings
    assert 1 == len(harness.proposed(e.ConsumerRegistered))


async def test_registering_again_omits_revoked_segments_and_revokes_them_again(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.pushes.clear()
    answer = harness.register("ada")

    assert [0, 1] == granted(answer)
    [push] = harness.take_pushes("ada")
    assert [2, 3] == [revocation.segment for revocation in push.revoked]
    assert not any(revocation.final for revocation in push.revoked)


async def test_returning_within_the_grace_period_moves_nothing(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    generations = {s: holding.generation for s, holding in harness.subscription.holdings.items()}
    harness.coordinator.client_disconnected("anonymous/client-ada")
    await harness.run(59)
    assert harness.subscription.consumers["ada"].disconnected_at_ms is not None
    answer = harness.register("ada")
    await harness.run(10)

    assert [0, 1, 2, 3] == granted(answer)
    assert generations == {s: holding.generation for s, holding in harness.subscription.holdings.items()}
    assert harness.subscription.consumers["ada"].disconnected_at_ms is None
    assert events.ConsumerReconnected() in harness.observer.events


async def test_a_registration_with_another_type_is_rejected_with_the_valid_one(harness: CoordinatorHarness) -> None:
    rejected = harness.register("ada", type="QUEUE")

    assert "invalid" == rejected.verdict
    assert "STREAM" in rejected.reason
    assert {} == harness.subscription.consumers


async def test_strict_order_is_rejected_for_a_queue(lead: Lead) -> None:
    harness = lead(type="QUEUE")

    assert "STREAM" in harness.register("ada", order="strict").reason


# Two instances with one name


async def test_a_newer_incarnation_fences_the_older_and_gets_new_generations(harness: CoordinatorHarness) -> None:
    harness.register("ada", client_id="anonymous/client-old")
    answer = harness.register("ada", incarnation=2, client_id="anonymous/client-new")

    assert [5, 6, 7, 8] == [grant.generation for grant in answer.grants]
    [(client_id, fenced)] = harness.pushes
    assert "anonymous/client-old" == client_id
    assert isinstance(fenced, m.ConsumerFenced)
    assert 1 == fenced.incarnation
    assert "replaced" == harness.proposed(e.ConsumerRemoved)[0].reason
    assert events.ConsumerRemoved(reason="replaced") in harness.observer.events


async def test_a_replacement_moves_no_segment_to_another_name(lead: Lead) -> None:
    """By name only, the extra segment of bob would go to ada."""
    harness = lead("bob", "ada", segments=3)
    harness.confirm("bob", 2)
    assert {0: "bob", 1: "bob", 2: "ada"} == harness.holders()
    answer = harness.register("bob", incarnation=2)

    assert [0, 1] == granted(answer)
    assert {0: "bob", 1: "bob", 2: "ada"} == harness.holders()


async def test_an_older_incarnation_is_fenced_and_changes_nothing(harness: CoordinatorHarness) -> None:
    harness.register("ada", incarnation=2)
    before = len(harness.entries)

    assert "fenced" == harness.register("ada", incarnation=1, client_id="anonymous/client-old").verdict
    assert "fenced" == harness.heartbeat("ada", incarnation=1, client_id="anonymous/client-old").verdict
    assert before == len(harness.entries)


async def test_two_clients_with_one_incarnation_never_share_a_generation(harness: CoordinatorHarness) -> None:
    old = harness.register("ada", client_id="anonymous/client-1")
    new = harness.register("ada", client_id="anonymous/client-2")

    assert not {g.generation for g in old.grants} & {g.generation for g in new.grants}
    assert "fenced" == harness.heartbeat("ada", client_id="anonymous/client-1").verdict


async def test_a_stale_leave_changes_nothing(harness: CoordinatorHarness) -> None:
    harness.register("ada", incarnation=2, client_id="anonymous/client-new")
    before = len(harness.entries)
    harness.leave("ada", incarnation=1, client_id="anonymous/client-old")
    harness.leave("ada", incarnation=2, client_id="anonymous/client-old")
    harness.leave("eve")

    assert before == len(harness.entries)


async def test_a_delayed_will_of_a_replaced_client_changes_nothing(harness: CoordinatorHarness) -> None:
    harness.register("ada", client_id="anonymous/client-old")
    harness.register("ada", incarnation=2, client_id="anonymous/client-new")
    harness.coordinator.client_disconnected("anonymous/client-old")

    assert harness.subscription.consumers["ada"].disconnected_at_ms is None


async def test_a_will_changes_nothing_for_a_consumer_that_was_heard_after_it(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    published_at = asyncio.get_running_loop().time()
    await harness.run(1)
    harness.heartbeat("ada")
    harness.coordinator.client_disconnected("anonymous/client-ada", published_at)

    assert harness.subscription.consumers["ada"].disconnected_at_ms is None


# Leaving and disconnecting


async def test_a_leave_releases_all_holdings_at_once(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.leave("ada")

    assert {0: "bob", 1: "bob", 2: "bob", 3: "bob"} == harness.holders()
    assert "left" == harness.proposed(e.ConsumerRemoved)[0].reason


async def test_three_missed_heartbeats_then_grace_then_eviction(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    for _ in range(9):
        assert isinstance(harness.heartbeat("bob"), m.HeartbeatReply)
        await harness.run(5)
    assert 15_000 == harness.subscription.consumers["ada"].disconnected_at_ms - START_MS
    assert harness.subscription.consumers["bob"].disconnected_at_ms is None
    for _ in range(5):
        harness.heartbeat("bob")
        await harness.run(5)
    assert {"ada", "bob"} == set(harness.subscription.consumers)
    harness.heartbeat("bob")
    await harness.run(6)

    assert {"bob"} == set(harness.subscription.consumers)
    assert {0: "bob", 1: "bob", 2: "bob", 3: "bob"} == harness.holders()
    assert "evicted" == harness.proposed(e.ConsumerRemoved)[0].reason
    assert "register again" in harness.take_pushes("ada")[-1].reason


async def test_a_command_evicts_a_consumer_that_runs(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.confirm_all()
    harness.take_pushes("ada")
    command = m.EvictConsumer(topic="orders", subscription="billing", consumer="ada", token="t")

    assert m.Done() == harness.coordinator.evict(command)
    assert {0: "bob", 1: "bob", 2: "bob", 3: "bob"} == harness.holders()
    removed = harness.proposed(e.ConsumerRemoved)[0]
    assert ("ada", "evicted", "t") == (removed.consumer, removed.reason, removed.token)
    assert "consumer 'ada' was evicted by a command" == harness.take_pushes("ada")[-1].reason
    assert "fenced" == harness.register("ada").verdict
    assert isinstance(harness.register("ada", incarnation=2), m.Registered)


async def test_an_eviction_of_an_unknown_consumer_names_the_consumers(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    command = m.EvictConsumer(topic="orders", subscription="billing", consumer="eve", token="t")
    refused = harness.coordinator.evict(command)

    assert isinstance(refused, Refusal)
    assert "has no consumer 'eve'; consumers: ada, bob" in refused.reason


async def test_a_description_says_when_each_consumer_was_heard_last(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    await harness.run(3)
    harness.register("bob")
    await harness.run(2)
    described = harness.coordinator.describe().consumers
    assert [5000, 2000] == [each.last_heard_age_ms for each in described]
    assert [START_MS, START_MS + 3000] == [each.registered_at_ms for each in described]

    harness.coordinator.client_disconnected("anonymous/client-ada")
    gone = harness.coordinator.describe().consumers[0]
    assert (None, START_MS + 5000) == (gone.last_heard_age_ms, gone.disconnected_at_ms)


async def test_a_heartbeat_within_the_grace_period_moves_nothing(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    harness.coordinator.client_disconnected("anonymous/client-ada")
    await harness.run(30)
    assert isinstance(harness.heartbeat("ada"), m.HeartbeatReply)
    await harness.run(14)

    assert harness.subscription.consumers["ada"].disconnected_at_ms is None
    assert 4 == len(harness.proposed(e.SegmentGranted))


async def test_a_will_starts_the_grace_period_at_once_and_only_once(harness: CoordinatorHarness) -> None:
    harness.register("ada")
    harness.coordinator.client_disconnected("anonymous/client-ada")
    await harness.run(30)
    harness.coordinator.client_disconnected("anonymous/client-ada")
    await harness.run(31)

    assert {} == harness.subscription.consumers
    assert 1 == len(harness.proposed(e.ConsumerDisconnected))


async def test_client_presence_renews_connected_consumers_but_not_disconnected_ones(
    harness: CoordinatorHarness,
) -> None:
    harness.register("ada")
    await harness.run(14)
    harness.coordinator.client_connected("anonymous/client-ada")
    await harness.run(14)
    assert harness.subscription.consumers["ada"].disconnected_at_ms is None
    harness.coordinator.client_disconnected("anonymous/client-ada")
    harness.coordinator.client_connected("anonymous/client-ada")
    await harness.run(61)

    assert {} == harness.subscription.consumers


async def test_client_presence_does_not_extend_the_grace_period(harness: CoordinatorHarness) -> None:
    """Not even if the ledger's clock is ahead, so that only the leader's clock counts."""
    harness.register("ada")
    harness.coordinator.client_disconnected("anonymous/client-ada")
    harness.coordinator._now_ms = lambda: 0
    await harness.run(40)
    harness.coordinator.client_connected("anonymous/client-ada")
    await harness.run(21)

    assert {} == harness.subscription.consumers


async def test_a_heartbeat_of_an_unregistered_consumer_is_rejected(harness: CoordinatorHarness) -> None:
    rejected = harness.heartbeat("ada")

    assert "out_of_order" == rejected.verdict
    assert "register first" in rejected.reason
    harness.register("ada")
    assert "register first" in harness.heartbeat("ada", incarnation=2).reason


# Handover


async def test_a_holder_that_does_not_confirm_in_time_is_fenced(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.pushes.clear()
    for _ in range(6):
        harness.heartbeat("ada")
        harness.heartbeat("bob")
        await harness.run(4.9)
    assert 2 == len(harness.holders())
    harness.pushes.clear()
    await harness.run(1)

    assert {0: "ada", 1: "ada", 2: "bob", 3: "bob"} == harness.holders()
    [push] = harness.take_pushes("ada")
    assert [(2, 3, True), (3, 4, True)] == [(r.segment, r.generation, r.final) for r in push.revoked]
    assert "held by 'bob'" in harness.acknowledge("ada", 2, 0, generation=3)
    assert {"timed_out"} == {entry.reason for entry in harness.proposed(e.SegmentReleased)}


@pytest.mark.parametrize(
    ("consumer", "segment", "generation", "incarnation"),
    [("ada", 3, 3, 1), ("bob", 3, 4, 1), ("ada", 3, 4, 0), ("ada", 0, 1, 1), ("ada", 9, 1, 1), ("eve", 3, 4, 1)],
    ids=[
        "older generation",
        "not the holder",
        "older incarnation",
        "not revoked",
        "unknown segment",
        "unknown consumer",
    ],
)
async def test_a_confirmation_without_a_matching_revocation_changes_nothing(
    harness: CoordinatorHarness, consumer: str, segment: int, generation: int, incarnation: int
) -> None:
    harness.join("ada", "bob")
    before = len(harness.entries)

    assert isinstance(harness.confirm(consumer, segment, generation, incarnation=incarnation), m.Done)
    assert before == len(harness.entries)


async def test_a_confirmation_twice_counts_once(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.confirm("ada", 3, 4)
    before = len(harness.entries)
    harness.confirm("ada", 3, 4)

    assert before == len(harness.entries)


async def test_if_the_next_owner_leaves_the_old_holder_gets_a_new_generation(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    harness.leave("bob")
    assert 2 == len(harness.holders())
    harness.confirm("ada", 2)
    harness.confirm("ada", 3)

    assert dict.fromkeys(range(4), "ada") == harness.holders()
    assert harness.subscription.holdings[2].generation > 4


async def test_a_revoked_segment_does_not_count_as_held(harness: CoordinatorHarness) -> None:
    """If it did, dan's registration would move segment 3 away from zoe needlessly."""
    harness.join("zoe", "bob")
    for segment in (2, 3):
        harness.confirm("zoe", segment)
    harness.register("cyd")
    harness.leave("bob")
    assert {0: "zoe", 2: "cyd", 3: "zoe"} == harness.holders()
    revoked_before = len(harness.proposed(e.SegmentRevoked))
    harness.register("dan")
    harness.confirm("zoe", 1)

    assert revoked_before == len(harness.proposed(e.SegmentRevoked))
    assert {0: "zoe", 1: "dan", 2: "cyd", 3: "zoe"} == harness.holders()


async def test_if_the_old_holder_leaves_the_next_owner_gets_the_segment_at_once(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    await harness.run(3)
    harness.leave("ada")

    assert dict.fromkeys(range(4), "bob") == harness.holders()
    assert harness.coordinator.handovers_complete
    assert events.HandoverFinished(seconds=3.0, reason="holder_left") in harness.observer.events


async def test_a_finished_handover_is_reported_with_its_duration(harness: CoordinatorHarness) -> None:
    harness.join("ada", "bob")
    await harness.run(2)
    harness.confirm("ada", 2)

    assert [events.HandoverFinished(seconds=2.0, reason="confirmed")] == harness.observer.of(events.HandoverFinished)


async def test_one_confirmation_of_several_revocations_is_one_change_of_the_assignment(
    harness: CoordinatorHarness,
) -> None:
    """Each next owner gets one push for all of its segments. What is not revoked, or another's, changes nothing."""
    harness.join("ada", "bob")
    revoked = [(each.segment, each.generation) for each in harness.proposed(e.SegmentRevoked)]
    pushes = len(harness.pushes)
    before = len(harness.entries)

    harness.confirm_together("bob", revoked)
    harness.confirm_together("ada", [(0, 1), (99, 99), (revoked[0][0], revoked[0][1] + 1)])
    assert before == len(harness.entries)
    harness.confirm_together("ada", [*revoked, *revoked, (0, 1)])

    assert {0: "ada", 1: "ada", 2: "bob", 3: "bob"} == harness.holders()
    assert [("anonymous/client-bob", [2, 3])] == [
        (client_id, [each.segment for each in push.granted]) for client_id, push in harness.pushes[pushes:]
    ]
    kinds = [type(each) for each in harness.entries[before:]]
    assert kinds == [e.SegmentReleased] * 2 + [e.SegmentGranted] * 2


async def test_a_hundred_joins_between_two_ticks_move_each_segment_at_most_once(lead: Lead) -> None:
    """A pending handover goes to the final owner, so reconciling once per join costs only time."""
    harness = lead(segments=200)
    for n in range(100):
        harness.register(f"c{n:02}")
    revoked = harness.proposed(e.SegmentRevoked)
    assert 200 - 2 == len(revoked), "all but the two that the first consumer keeps"
    for each in revoked:
        harness.confirm("c00", each.segment, each.generation)

    holders = list(harness.holders().values())
    assert {2} == {holders.count(f"c{n:02}") for n in range(100)}
    assert 200 - 2 == len(harness.proposed(e.SegmentRevoked)), "no segment moved twice"
