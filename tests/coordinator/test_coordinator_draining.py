"""One subscription on its leader: children held back and let through, polling and seeks."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.subscription_environment import Checker, World, split_world, virtual_time

pytestmark = pytest.mark.looptime


@pytest.fixture
async def parts() -> AsyncIterator[tuple[World, Checker]]:
    with virtual_time():
        world, checker = await split_world()
    yield world, checker
    await world.coordinator.close()


# --- letting children through -----------------------------------------------------------------------------------------


async def test_children_wait_until_the_parent_is_drained_and_go_to_its_holder(parts: tuple[World, Checker]) -> None:
    world, _ = parts
    await world.live(100)
    assert {0: "ada"} == world.holders()
    world.acknowledge("ada", 0, 4)
    await world.live(1000)
    assert {0: "ada"} == world.holders()

    world.pushes.clear()
    world.acknowledge("ada", 0, 5)
    await world.run(0.1)
    assert {1: "ada", 2: "ada"} == world.holders()
    [told] = world.told("ada")
    assert [1, 2] == [grant.segment for grant in told.granted]
    assert [m.Revocation(segment=0, generation=1, final=True)] == told.revoked
    assert "drained" == world.proposed(e.SegmentReleased)[0].reason


async def test_an_acknowledgement_that_reaches_the_sealed_end_is_followed_by_a_question_at_once(
    parts: tuple[World, Checker],
) -> None:
    world, checker = parts
    await world.live(300)
    asked_before = len(checker.asked)
    world.acknowledge("ada", 0, 4)
    assert asked_before == len(checker.asked)
    await world.run(0.1)
    assert asked_before == len(checker.asked)
    world.acknowledge("ada", 0, 5)
    await world.run(1)

    assert [300.1] == checker.asked_at[asked_before:]
    assert [("drained", 1, pytest.approx(0.05))] == [told for told in world.observer.told if told[0] == "drained"]


async def test_a_split_behind_the_last_acknowledgement_asks_at_once() -> None:
    """An idle stream is drained in the moment in which it is sealed: nobody will acknowledge anything more."""
    world = World()
    checker = Checker(world)
    world.lead(checker)
    world.register("ada")
    world.split(0)
    await world.run(0.1)

    assert {1: "ada", 2: "ada"} == world.holders()
    await world.coordinator.close()


async def test_generations_of_empty_segments_are_let_through_without_a_pause(parts: tuple[World, Checker]) -> None:
    """1 and 3 were split before they received anything; the nearest holder in their line is 0's."""
    world, _ = parts
    world.split(1)
    world.split(3)
    world.register("bob")
    assert {0: "ada"} == world.holders()
    assert {1: (0,), 2: (0,), 3: (1, 0), 4: (1, 0), 5: (3, 1, 0), 6: (3, 1, 0)} == dict(world.coordinator.blocked)
    world.acknowledge("ada", 0, 5)
    await world.run(0.2)

    assert {2, 4, 5, 6} == set(world.holders())
    assert {} == dict(world.coordinator.blocked)


async def test_a_grandchild_goes_to_the_nearest_holder_in_its_line() -> None:
    """2 was empty and never held. By name alone, 4 would have gone to ada and 5 to bob."""
    world = World(segments=2)
    world.lead(world.check)
    world.register("bob")
    world.register("ada")
    world.confirm("bob", 1)
    world.store(0, 5)
    world.split(0)
    world.split(2)
    world.acknowledge("bob", 0, 5)
    await world.run(0.1)

    assert {1: "ada", 3: "bob", 4: "bob", 5: "ada"} == world.holders()
    await world.coordinator.close()


async def test_a_merged_child_waits_for_both_parents() -> None:
    world = World(segments=2)
    world.lead(world.check)
    world.register("ada")
    world.register("bob")
    world.confirm("ada", 1)
    world.store(0, 1)
    world.store(1, 1)
    world.merge(0, 1)
    world.acknowledge("ada", 0, 1)
    await world.run(5)
    assert {1: "bob"} == world.holders()
    world.acknowledge("bob", 1, 1)
    await world.run(5)

    assert {2: "bob"} == world.holders()
    await world.coordinator.close()


async def test_pruning_changes_nothing_for_the_children(parts: tuple[World, Checker]) -> None:
    world, _ = parts
    world.acknowledge("ada", 0, 5)
    await world.run(1)
    before = len(world.entries)
    world.prune(0)

    assert before + 1 == len(world.entries)
    assert {1: "ada", 2: "ada"} == world.holders()


async def test_pruning_what_is_held_or_changing_hands_leaves_nothing_behind() -> None:
    """Retention may prune a sealed segment that a CHECKPOINT consumer still holds."""
    world = World(segments=2, type="CHECKPOINT", order="none")
    world.lead()
    world.register("ada")
    world.split(1)
    for name in ("bob", "cyd", "dan"):
        world.register(name)
    assert {0: "ada"} == world.holders()
    world.prune(1)
    assert [0] == [grant.segment for grant in world.register("ada").grants]
    world.confirm("ada", 2)
    world.confirm("ada", 3)

    assert world.coordinator.settled
    assert {0, 2, 3} == set(world.holders())
    world.split(0)
    world.prune(0)
    assert [4] == [grant.segment for grant in world.register("ada").grants]
    await world.coordinator.close()


@pytest.mark.parametrize(("kind", "order"), [("QUEUE", "none"), ("CHECKPOINT", "none"), ("STREAM", "none")])
async def test_without_the_gate_children_never_wait(kind: str, order: str) -> None:
    world, _ = await split_world(kind, order)

    assert {0: "ada", 1: "ada", 2: "ada"} == world.holders()
    await world.coordinator.close()


async def test_a_queue_retires_what_it_has_acknowledged() -> None:
    world, _ = await split_world("QUEUE", "none")
    world.acknowledge("ada", 0, 5, first_offset=2)
    await world.live(100)
    assert {0: "ada", 1: "ada", 2: "ada"} == world.holders()
    world.acknowledge("ada", 0, 2, first_offset=0)
    await world.run(0.1)

    assert {1: "ada", 2: "ada"} == world.holders()
    await world.coordinator.close()


async def test_checkpoint_is_never_asked_about() -> None:
    world, checker = await split_world("CHECKPOINT", "none")
    world.coordinator.install_drain_checker(checker)
    await world.live(100)

    assert [] == checker.asked
    assert {0, 1, 2} == set(world.holders())
    await world.coordinator.close()


async def test_without_a_checker_the_gate_holds_until_one_is_installed() -> None:
    """No checker is no reason to break order. The second one installed is ignored."""
    world = World()
    world.lead(None)
    world.register("ada")
    world.store(0, 1)
    world.split(0)
    world.acknowledge("ada", 0, 1)
    await world.live(1000)
    assert {0: "ada"} == world.holders()

    asked = []

    async def never(segments: frozenset[int]) -> frozenset[int]:
        asked.append(segments)
        return frozenset()

    world.coordinator.install_drain_checker(None)
    world.coordinator.install_drain_checker(world.check)
    world.coordinator.install_drain_checker(never)
    await world.run(0.1)
    assert {1: "ada", 2: "ada"} == world.holders()
    assert [] == asked
    await world.coordinator.close()


async def test_a_checker_that_is_back_is_asked_at_once(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    checker.blind = True
    world.acknowledge("ada", 0, 5)
    await world.live(300)
    checker.blind = False
    world.coordinator.checker_ready()
    await world.run(0.1)

    assert {1: "ada", 2: "ada"} == world.holders()


# --- polling ----------------------------------------------------------------------------------------------------------


async def test_polls_become_rare_and_every_progress_event_makes_them_frequent_again(
    parts: tuple[World, Checker],
) -> None:
    world, checker = parts
    events = {
        "register": lambda: world.register("bob"),
        "reconnect": lambda: world.register("ada"),
        "heartbeat after silence": lambda: (world.coordinator.client_gone("client-bob"), world.heartbeat("bob")),
        "layout": lambda: (world.store(1, 1), world.split(1)),
        "seek": lambda: world.seek({0: 1}),
    }
    for name, event in events.items():
        await world.live(1000)
        checker.asked.clear()
        event()
        now = asyncio.get_running_loop().time()
        await world.run(2.3)
        assert [now + 2] == pytest.approx(checker.asked_at), name


async def test_polling_stops_when_the_last_consumer_leaves_and_begins_again_with_the_next(
    parts: tuple[World, Checker],
) -> None:
    world, checker = parts
    await world.run(3)
    world.leave("ada")
    await asyncio.sleep(0)
    assert not world.coordinator._poller.running
    checker.asked.clear()
    await world.live(1000)
    assert [] == checker.asked

    world.register("bob")
    await world.run(2.3)
    assert 1 == len(checker.asked)


async def test_polling_stops_when_everything_is_drained(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    world.acknowledge("ada", 0, 5)
    await world.run(0.5)
    checker.asked.clear()
    await world.live(1000)

    assert [] == checker.asked


async def test_a_checker_that_is_blind_for_a_while_costs_time_and_nothing_else(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    checker.blind = True
    world.acknowledge("ada", 0, 5)
    await world.run(10)
    assert {0: "ada"} == world.holders()
    checker.blind = False
    world.heartbeat("ada")
    await world.run(14)

    assert {1: "ada", 2: "ada"} == world.holders()


async def test_an_answer_about_a_segment_that_is_not_sealed_is_left_out(parts: tuple[World, Checker]) -> None:
    """Even if the poller let it through."""
    world, _ = parts
    world.coordinator._on_drained(frozenset({1, 2, 77}))

    assert [] == world.proposed(e.SegmentsDrained)


async def test_after_close_nothing_is_asked_or_written(parts: tuple[World, Checker]) -> None:
    world, checker = parts
    world.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.01)
    assert 1 == len(checker.asked)
    before = len(world.entries)
    await world.coordinator.close()
    await asyncio.sleep(1000)

    assert 1 == len(checker.asked)
    assert before == len(world.entries)


async def test_a_bug_in_what_follows_from_an_answer_comes_out_of_the_tick(parts: tuple[World, Checker]) -> None:
    world, _ = parts

    def broken(*entries: e.AnyEntry) -> None:
        raise AssertionError("a bug")

    world.acknowledge("ada", 0, 5)
    world.propose = broken
    with pytest.raises(AssertionError, match="a bug"):
        await world.run(1)


# --- seeking ----------------------------------------------------------------------------------------------------------


async def test_a_seek_closes_the_gate_again_and_everybody_begins_anew(parts: tuple[World, Checker]) -> None:
    world, _ = parts
    world.register("bob")
    world.acknowledge("ada", 0, 5)
    await world.run(0.1)
    assert {1: "ada", 2: "bob"} == world.holders()
    world.pushes.clear()
    world.seek({0: 2})

    assert {0} == set(world.holders())
    assert [(1, 2, True)] == [(r.segment, r.generation, r.final) for push in world.told("ada") for r in push.revoked]
    assert {"drained", "rewound"} == {entry.reason for entry in world.proposed(e.SegmentReleased)}
    await world.live(100)
    assert {0} == set(world.holders())


async def test_a_seek_leaves_segments_with_their_holders() -> None:
    """With new generations. By name alone, the two would have changed places."""
    world = World(segments=2)
    world.lead(world.check)
    world.register("bob")
    world.register("ada")
    world.confirm("bob", 1)
    assert {0: "bob", 1: "ada"} == world.holders()
    generations = {holding.generation for holding in world.subscription.holdings.values()}
    world.seek({1: 0})

    assert {0: "bob", 1: "ada"} == world.holders()
    assert not generations & {holding.generation for holding in world.subscription.holdings.values()}
    await world.coordinator.close()


async def test_an_answer_from_before_a_seek_is_worth_nothing(parts: tuple[World, Checker]) -> None:
    """The check began at the old positions and ends after the seek."""
    world, checker = parts
    world.acknowledge("ada", 0, 5)
    await asyncio.sleep(0.04)
    assert 1 == len(checker.asked)
    world.subscription.positions[0] = 5  # what the check will see, whatever the seek did
    world.seek({1: 0})
    await asyncio.sleep(0.02)
    assert [] == world.proposed(e.SegmentsDrained)

    await world.run(0.2)
    assert [1] == [entry.seek_generation for entry in world.proposed(e.SegmentsDrained)]


# --- types and order --------------------------------------------------------------------------------------------------


async def test_a_subscription_of_unknown_type_has_no_gate_and_no_checker_until_a_stream_shows_itself() -> None:
    world = World(type=None, order="none")
    checker = Checker(world)
    with capture_logs() as logs:
        world.lead(checker)
        world.store(0, 5)
        world.split(0)
        await world.live(100)
    assert {} == dict(world.coordinator.blocked)
    assert [] == checker.asked
    assert "drain_checker.installed" not in {line["event"] for line in logs}

    with capture_logs() as logs:
        answer = world.register("ada", type="STREAM")
    assert "drain_checker.installed" in {line["event"] for line in logs}
    assert [0] == [grant.segment for grant in answer.grants]
    assert {1: (0,), 2: (0,)} == dict(world.coordinator.blocked)
    assert ("STREAM", "strict") == (world.subscription.type, world.subscription.order)
    await world.run(2.3)
    assert 1 == len(checker.asked)
    assert "invalid" == world.register("bob", type="CHECKPOINT").verdict
    await world.coordinator.close()


async def test_an_unknown_type_that_turns_out_to_be_a_checkpoint_gets_no_gate() -> None:
    world = World(type=None)
    checker = Checker(world)
    world.lead(checker)
    world.store(0, 5)
    world.split(0)
    answer = world.register("ada", type="CHECKPOINT")
    await world.run(10)

    assert [0, 1, 2] == [grant.segment for grant in answer.grants]
    assert [] == checker.asked
    await world.coordinator.close()


async def test_order_can_be_weakened_and_restored_on_a_live_subscription(parts: tuple[World, Checker]) -> None:
    world, _ = parts
    world.register("bob", order="none")
    assert {0, 1, 2} == set(world.holders())
    world.register("cyd")
    assert "none" == world.subscription.order

    world.register("dan", order="strict")
    held = {s for s, holding in world.subscription.holdings.items() if holding.revoked_at_ms is None}
    assert held <= {0}
    assert {1: (0,), 2: (0,)} == dict(world.coordinator.blocked)


async def test_who_comes_back_does_not_undo_an_order_that_was_changed_since(parts: tuple[World, Checker]) -> None:
    """Consumers register again with every change of leader, and say the same each time."""
    world, _ = parts
    world.register("bob", order="strict")
    world.propose(
        e.SubscriptionTyped(topic_id=1, subscription_id=2, subscription_type="STREAM", order="none", token="o")
    )
    world.coordinator.order_changed()
    world.register("bob", order="strict")

    assert "none" == world.subscription.order
    assert {0, 1, 2} == set(world.holders())
