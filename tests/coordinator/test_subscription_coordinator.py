"""One subscription on its leader: sessions and handovers."""

import pytest

from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.subscription_environment import START_MS, World, virtual_time

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world():
    """Four segments, STREAM in strict order, nobody registered."""
    with virtual_time():
        world = World(segments=4)
        world.lead(world.check)
    yield world
    await world.coordinator.close()


def granted(answer: m.Registered) -> list[int]:
    return [grant.segment for grant in answer.grants]


# --- joining and coming back ------------------------------------------------------------------------------------------


async def test_the_first_consumer_gets_everything_in_its_answer_and_no_push(world: World) -> None:
    world.store(1, 3)
    answer = world.register("ada")

    assert [0, 1, 2, 3] == granted(answer)
    assert [1, 2, 3, 4] == [grant.generation for grant in answer.grants]
    assert (world.reign, 5.0, world.state.chunk) == (
        answer.leader_epoch,
        answer.heartbeat_interval_seconds,
        answer.head,
    )
    assert [] == world.pushes


async def test_a_grant_says_where_to_begin_and_where_a_sealed_segment_ends(world: World) -> None:
    world.store(0, 5)
    world.register("ada")
    world.acknowledge("ada", 0, 3)
    world.split(0)
    grant = world.register("ada").grants[0]

    assert (0, 0x0000, 0x3FFF, 3, 5) == (
        grant.segment,
        grant.first_hash,
        grant.last_hash,
        grant.start_offset,
        grant.end_offset,
    )
    assert world.topic.tails[0].chunk_of(3) == grant.start_chunk


async def test_a_second_consumer_gets_its_share_only_after_the_first_has_let_go(world: World) -> None:
    world.register("ada")
    answer = world.register("bob")
    assert [] == granted(answer)
    [told] = world.told("ada")
    assert [m.Revocation(segment=2, generation=3), m.Revocation(segment=3, generation=4)] == told.revoked
    assert [] == told.granted
    assert not world.coordinator.settled

    world.confirm("ada", 3)
    assert {0: "ada", 1: "ada", 3: "bob"} == world.holders()
    assert not world.coordinator.settled
    world.confirm("ada", 2)
    assert {0: "ada", 1: "ada", 2: "bob", 3: "bob"} == world.holders()
    assert world.coordinator.settled
    assert [(3, 5), (2, 6)] == [(g.segment, g.generation) for push in world.told("bob") for g in push.granted]
    assert [] == world.told("ada")


async def test_messages_carry_the_reign_and_name_the_incarnation(world: World) -> None:
    world.register("ada", incarnation=7)
    world.register("bob")
    [told] = world.told("ada")

    assert ("orders", "billing", "ada", 7, world.reign) == (
        told.topic,
        told.subscription,
        told.consumer,
        told.incarnation,
        told.leader_epoch,
    )


async def test_registering_again_moves_nothing_and_answers_all_that_is_held(world: World) -> None:
    world.register("ada")
    before = dict(world.subscription.holdings)
    answer = world.register("ada")

    assert [0, 1, 2, 3] == granted(answer)
    assert before == world.subscription.holdings
    assert 1 == len(world.proposed(e.ConsumerRegistered))


async def test_what_was_revoked_is_left_out_of_the_answer_and_revoked_again(world: World) -> None:
    world.register("ada")
    world.register("bob")
    world.pushes.clear()
    answer = world.register("ada")

    assert [0, 1] == granted(answer)
    [told] = world.told("ada")
    assert [2, 3] == [revocation.segment for revocation in told.revoked]
    assert not any(revocation.final for revocation in told.revoked)


async def test_coming_back_within_grace_moves_nothing(world: World) -> None:
    world.register("ada")
    generations = {s: holding.generation for s, holding in world.subscription.holdings.items()}
    world.coordinator.client_gone("client-ada")
    await world.run(59)
    assert world.subscription.consumers["ada"].disconnected_at_ms is not None
    answer = world.register("ada")
    await world.run(10)

    assert [0, 1, 2, 3] == granted(answer)
    assert generations == {s: holding.generation for s, holding in world.subscription.holdings.items()}
    assert world.subscription.consumers["ada"].disconnected_at_ms is None
    assert ("reconnected",) in world.observer.told


async def test_a_type_that_is_not_the_subscriptions_is_refused_with_the_valid_one(world: World) -> None:
    refused = world.register("ada", type="QUEUE")

    assert "invalid" == refused.verdict
    assert "STREAM" in refused.reason
    assert {} == world.subscription.consumers


async def test_strict_order_is_refused_where_it_means_nothing() -> None:
    world = World(type="QUEUE", order="none")
    world.lead()

    assert "STREAM" in world.register("ada", order="strict").reason


# --- two with one name ------------------------------------------------------------------------------------------------


async def test_a_newer_incarnation_takes_over_loudly_with_new_generations(world: World) -> None:
    world.register("ada", client_id="client-old")
    answer = world.register("ada", incarnation=2, client_id="client-new")

    assert [5, 6, 7, 8] == [grant.generation for grant in answer.grants]
    [(client_id, fenced)] = world.pushes
    assert "client-old" == client_id
    assert isinstance(fenced, m.ConsumerFenced)
    assert 1 == fenced.incarnation
    assert "replaced" == world.proposed(e.ConsumerGone)[0].reason
    assert ("gone", "replaced") in world.observer.told


async def test_a_takeover_moves_no_segment_to_another_name() -> None:
    """By name alone, the segment that bob has more would have gone to ada."""
    world = World(segments=3)
    world.lead()
    world.register("bob")
    world.register("ada")
    world.confirm("bob", 2)
    assert {0: "bob", 1: "bob", 2: "ada"} == world.holders()
    answer = world.register("bob", incarnation=2)

    assert [0, 1] == granted(answer)
    assert {0: "bob", 1: "bob", 2: "ada"} == world.holders()


async def test_an_older_incarnation_is_fenced_and_changes_nothing(world: World) -> None:
    world.register("ada", incarnation=2)
    before = len(world.entries)

    assert "fenced" == world.register("ada", incarnation=1, client_id="client-old").verdict
    assert "fenced" == world.heartbeat("ada", incarnation=1, client_id="client-old").verdict
    assert before == len(world.entries)


async def test_two_clients_with_one_incarnation_never_share_a_generation(world: World) -> None:
    old = world.register("ada", client_id="client-1")
    new = world.register("ada", client_id="client-2")

    assert not {g.generation for g in old.grants} & {g.generation for g in new.grants}
    assert "fenced" == world.heartbeat("ada", client_id="client-1").verdict


async def test_a_stale_leave_changes_nothing(world: World) -> None:
    world.register("ada", incarnation=2, client_id="client-new")
    before = len(world.entries)
    world.leave("ada", incarnation=1, client_id="client-old")
    world.leave("ada", incarnation=2, client_id="client-old")
    world.leave("eve")

    assert before == len(world.entries)


async def test_a_late_last_will_of_the_old_one_changes_nothing(world: World) -> None:
    world.register("ada", client_id="client-old")
    world.register("ada", incarnation=2, client_id="client-new")
    world.coordinator.client_gone("client-old")

    assert world.subscription.consumers["ada"].disconnected_at_ms is None


# --- leaving and falling silent ---------------------------------------------------------------------------------------


async def test_a_clean_leave_frees_everything_at_once(world: World) -> None:
    world.register("ada")
    world.register("bob")
    world.leave("ada")

    assert {0: "bob", 1: "bob", 2: "bob", 3: "bob"} == world.holders()
    assert "left" == world.proposed(e.ConsumerGone)[0].reason


async def test_three_missed_heartbeats_then_grace_then_eviction(world: World) -> None:
    world.register("ada")
    world.register("bob")
    for _ in range(9):
        assert isinstance(world.heartbeat("bob"), m.Alive)
        await world.run(5)
    assert 15_000 == world.subscription.consumers["ada"].disconnected_at_ms - START_MS
    assert world.subscription.consumers["bob"].disconnected_at_ms is None
    for _ in range(5):
        world.heartbeat("bob")
        await world.run(5)
    assert {"ada", "bob"} == set(world.subscription.consumers)
    world.heartbeat("bob")
    await world.run(6)

    assert {"bob"} == set(world.subscription.consumers)
    assert {0: "bob", 1: "bob", 2: "bob", 3: "bob"} == world.holders()
    assert "evicted" == world.proposed(e.ConsumerGone)[0].reason
    assert "register again" in world.told("ada")[-1].reason


async def test_a_heartbeat_ends_silence_without_a_move(world: World) -> None:
    world.register("ada")
    world.coordinator.client_gone("client-ada")
    await world.run(30)
    assert isinstance(world.heartbeat("ada"), m.Alive)
    await world.run(14)

    assert world.subscription.consumers["ada"].disconnected_at_ms is None
    assert 4 == len(world.proposed(e.SegmentGranted))


async def test_a_last_will_begins_grace_at_once_and_only_once(world: World) -> None:
    world.register("ada")
    world.coordinator.client_gone("client-ada")
    await world.run(30)
    world.coordinator.client_gone("client-ada")
    await world.run(31)

    assert {} == world.subscription.consumers
    assert 1 == len(world.proposed(e.ConsumerDisconnected))


async def test_a_client_that_is_here_is_heard_but_a_silent_consumer_must_speak_for_itself(world: World) -> None:
    world.register("ada")
    await world.run(14)
    world.coordinator.client_here("client-ada")
    await world.run(14)
    assert world.subscription.consumers["ada"].disconnected_at_ms is None
    world.coordinator.client_gone("client-ada")
    world.coordinator.client_here("client-ada")
    await world.run(61)

    assert {} == world.subscription.consumers


async def test_a_connected_client_does_not_lengthen_the_grace_of_a_silent_consumer(world: World) -> None:
    """Not even where the ledger's clock stands ahead of ours, and only our own counts."""
    world.register("ada")
    world.coordinator.client_gone("client-ada")
    world.coordinator._now_ms = lambda: 0
    await world.run(40)
    world.coordinator.client_here("client-ada")
    await world.run(21)

    assert {} == world.subscription.consumers


async def test_an_evicted_consumer_is_told_to_register_first(world: World) -> None:
    refused = world.heartbeat("ada")

    assert "out_of_order" == refused.verdict
    assert "register first" in refused.reason
    world.register("ada")
    assert "register first" in world.heartbeat("ada", incarnation=2).reason


# --- handing over -----------------------------------------------------------------------------------------------------


async def test_a_holder_that_does_not_confirm_in_time_is_fenced(world: World) -> None:
    world.register("ada")
    world.register("bob")
    world.pushes.clear()
    for _ in range(6):
        world.heartbeat("ada")
        world.heartbeat("bob")
        await world.run(4.9)
    assert 2 == len(world.holders())
    world.pushes.clear()
    await world.run(1)

    assert {0: "ada", 1: "ada", 2: "bob", 3: "bob"} == world.holders()
    [told] = world.told("ada")
    assert [(2, 3, True), (3, 4, True)] == [(r.segment, r.generation, r.final) for r in told.revoked]
    assert "held by 'bob'" in world.acknowledge("ada", 2, 0, generation=3)
    assert {"timed_out"} == {entry.reason for entry in world.proposed(e.SegmentReleased)}


@pytest.mark.parametrize(
    ("consumer", "segment", "generation", "incarnation"),
    [("ada", 3, 3, 1), ("bob", 3, 4, 1), ("ada", 3, 4, 0), ("ada", 0, 1, 1), ("ada", 9, 1, 1), ("eve", 3, 4, 1)],
    ids=["older generation", "not the holder", "older incarnation", "not revoked", "no such segment", "a stranger"],
)
async def test_a_confirmation_that_fits_no_revocation_changes_nothing(
    world: World, consumer: str, segment: int, generation: int, incarnation: int
) -> None:
    world.register("ada")
    world.register("bob")
    before = len(world.entries)

    assert isinstance(world.confirm(consumer, segment, generation, incarnation=incarnation), m.Done)
    assert before == len(world.entries)


async def test_a_confirmation_twice_counts_once(world: World) -> None:
    world.register("ada")
    world.register("bob")
    world.confirm("ada", 3, 4)
    before = len(world.entries)
    world.confirm("ada", 3, 4)

    assert before == len(world.entries)


async def test_when_the_next_holder_leaves_first_the_old_one_gets_the_segment_back_anew(world: World) -> None:
    world.register("ada")
    world.register("bob")
    world.leave("bob")
    assert 2 == len(world.holders())
    world.confirm("ada", 2)
    world.confirm("ada", 3)

    assert dict.fromkeys(range(4), "ada") == world.holders()
    assert world.subscription.holdings[2].generation > 4


async def test_what_is_being_given_up_weighs_nothing(world: World) -> None:
    """Were it counted as held, dan's joining would take segment 3 from zoe for nothing."""
    world.register("zoe")
    world.register("bob")
    for segment in (2, 3):
        world.confirm("zoe", segment)
    world.register("cyd")
    world.leave("bob")
    assert {0: "zoe", 2: "cyd", 3: "zoe"} == world.holders()
    revoked_before = len(world.proposed(e.SegmentRevoked))
    world.register("dan")
    world.confirm("zoe", 1)

    assert revoked_before == len(world.proposed(e.SegmentRevoked))
    assert {0: "zoe", 1: "dan", 2: "cyd", 3: "zoe"} == world.holders()


async def test_when_the_old_holder_leaves_mid_handover_the_next_one_gets_it_at_once(world: World) -> None:
    world.register("ada")
    world.register("bob")
    await world.run(3)
    world.leave("ada")

    assert dict.fromkeys(range(4), "bob") == world.holders()
    assert world.coordinator.settled
    assert ("handover", 3.0, "holder_left") in world.observer.told


async def test_the_observer_hears_how_long_a_handover_took(world: World) -> None:
    world.register("ada")
    world.register("bob")
    await world.run(2)
    world.confirm("ada", 2)

    assert [("handover", 2.0, "confirmed")] == [told for told in world.observer.told if told[0] == "handover"]


async def test_a_hundred_joins_between_two_ticks_move_each_segment_once_at_most() -> None:
    """So a look for each costs time alone: what is on its way to one newcomer goes to whoever it belongs to in the end."""
    world = World(segments=200)
    world.lead(world.check)
    for n in range(100):
        world.register(f"c{n:02}")
    revoked = world.proposed(e.SegmentRevoked)
    assert 200 - 2 == len(revoked), "all but what the first one keeps"
    for each in revoked:
        world.confirm("c00", each.segment, each.generation)

    holders = list(world.holders().values())
    assert {2} == {holders.count(f"c{n:02}") for n in range(100)}
    assert 200 - 2 == len(world.proposed(e.SegmentRevoked)), "and nothing moved twice"
    await world.coordinator.close()
