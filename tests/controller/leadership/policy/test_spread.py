"""Which daemon should lead each shard: rules by example, and properties of all plans."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.leadership.policy.instance_record import LACKS
from controller.leadership.policy.spread import MAX_WEIGHT, LiveDaemon, Move, Plan, ShardQueue, plan, weights

NAMES = ("a", "b", "c", "d", "e")


def cluster(holders: dict[int, str], daemons: str = "abc", **changed: dict[str, bool]) -> tuple:
    """Return a view in which every daemon waits for each shard that it does not hold."""
    live = [replace(LiveDaemon(name), **changed.get(name, {})) for name in daemons]
    return live, [ShardQueue(shard, holder, frozenset(daemons) - {holder}) for shard, holder in holders.items()]


def after(view: tuple, moves: tuple[Move, ...]) -> tuple:
    """Return the view after ``moves``: the former holder waits."""
    live, queues = view
    targets = {move.shard: move.target for move in moves}
    return live, [
        replace(each, holder=targets[each.shard], waiting=(each.waiting | {each.holder}) - {targets[each.shard]})
        if each.shard in targets
        else each
        for each in queues
    ]


# Strategies that exist once: one that depends on drawn values is built for each example, which takes longer than a plan.
DAEMONS = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
READINESS = st.sampled_from(["ready", "doubtful", "no_broker", "no_store"])
SHARDS = st.integers(0, 12)
HOLDER = st.integers(0, 419)
"""Modulo any number of names: 420 is divisible by 1 to 7."""
ABSENT = st.sets(st.sampled_from(NAMES))
WEIGHT = st.integers(1, MAX_WEIGHT)


@st.composite
def views(draw: st.DrawFn, *, heavy: bool = False, troubled: bool = True) -> tuple:
    names = draw(DAEMONS)
    flag = st.booleans() if troubled else st.just(False)
    live = [
        LiveDaemon(
            name,
            settled=not draw(flag),
            in_maintenance=draw(flag) and draw(flag),
            leaving=draw(flag) and draw(flag),
            readiness=draw(READINESS) if draw(flag) and draw(flag) else "ready",
        )
        for name in names
    ]
    queues = []
    holders = [*names, "gone", None] if troubled else names
    for shard in range(draw(SHARDS)):
        holder = holders[draw(HOLDER) % len(holders)]
        absent = draw(ABSENT) if troubled and draw(flag) else set()
        queues.append(
            ShardQueue(
                shard,
                holder,
                frozenset([*names, "ended"] if troubled else names) - {holder} - absent,
                fixed=draw(flag) and draw(flag),
                weight=draw(WEIGHT) if heavy else 1,
            )
        )
    return live, queues


@given(views(troubled=False))
def test_the_numbers_of_shards_differ_by_at_most_one(view: tuple) -> None:
    """Rule 3."""
    held = Counter(plan(*view).preferred.values())
    numbers = [held[each.name] for each in view[0]]

    assert max(numbers) - min(numbers) <= 1


@given(views(troubled=False))
@example(cluster(dict.fromkeys(range(7), "a")))
def test_no_plan_with_fewer_moves_is_even(view: tuple) -> None:
    """Rule 3: each daemon keeps as much as an even share permits, and those with the most keep the larger shares."""
    live, queues = view
    share, larger = divmod(len(queues), len(live))
    held = sorted((sum(each.holder == daemon.name for each in queues) for daemon in live), reverse=True)
    kept = sum(min(number, share + (rank < larger)) for rank, number in enumerate(held))

    assert len(plan(*view).moves) == len(queues) - kept


@given(views(heavy=True, troubled=False))
def test_loads_become_even_up_to_one_shard(view: tuple) -> None:
    """Rules 3 and 6. Each plan makes the loads more even, so a few plans suffice."""
    for _ in range(20):
        made = plan(*view)
        if not made.moves:
            break
        view = after(view, made.moves)
    assert not made.moves, "the plans do not end"
    loads = Counter({each.name: 0 for each in view[0]})
    for queue in view[1]:
        loads[queue.holder] += queue.weight
    for queue in view[1]:
        assert loads[queue.holder] - min(loads[each.name] for each in view[0]) <= queue.weight


def queue(shard: int, holder: str, waiting: str, weight: int, *, fixed: bool = False) -> ShardQueue:
    return ShardQueue(shard, holder, frozenset(waiting), fixed=fixed, weight=weight)


def test_weights_are_whole_numbers_relative_to_the_mean() -> None:
    """Rule 6."""
    assert weights({0: 100, 1: 1, 2: 0, 3: 10_000}) == {0: 1, 1: 1, 2: 1, 3: 3}
    assert weights({0: 0, 1: 0}) == {0: 1, 1: 1}
    assert weights(dict.fromkeys(range(9), 1.0) | {9: 1000.0})[9] == MAX_WEIGHT


HEAVY_MOVES = [queue(0, "a", "c", 4), queue(1, "a", "c", 2), queue(2, "c", "ab", 1), queue(3, "c", "ab", 3)]
"""At first the light shard 2 would move from c to b, but the heavy one does, and then c has space."""
ONLY_TO_B = [queue(0, "a", "b", 1), queue(1, "a", "bc", 2), queue(2, "a", "b", 4, fixed=True)]
"""Shard 1 would move to b if shard 0, which can move only there, were left out."""


@pytest.mark.parametrize(
    ("queues", "moves"), [(HEAVY_MOVES, [(1, "a", "c"), (3, "c", "b")]), (ONLY_TO_B, [(1, "a", "c"), (0, "a", "b")])]
)
def test_a_shard_moves_once_to_where_it_is_best_after_all_others(queues: list[ShardQueue], moves: list[tuple]) -> None:
    """Rule 3."""
    assert plan([LiveDaemon(name) for name in "abc"], queues).moves == tuple(Move(*each, "spread") for each in moves)


@given(views(heavy=True), st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_irrelevant(view: tuple, rng: random.Random) -> None:
    """Rule 7: otherwise two daemons would disagree."""
    live, queues = list(view[0]), list(view[1])
    rng.shuffle(live)
    rng.shuffle(queues)

    assert plan(live, queues) == plan(*view)


@given(views())
def test_nothing_moves_once_a_plan_is_done(view: tuple) -> None:
    assert plan(*after(view, plan(*view).moves)).moves == ()


def test_a_daemon_that_cannot_read_a_shard_does_not_get_it() -> None:
    """Rule 1: it does not wait in the queue."""
    live, queues = cluster(dict.fromkeys(range(4), "a"), "ab")
    queues = [replace(each, waiting=frozenset()) if each.shard != 2 else each for each in queues]

    assert [move.shard for move in plan(live, queues).moves] == [2]


# Maintenance, settling, transfers by operators


@given(views(heavy=True))
def test_a_daemon_that_gives_its_shards_away_keeps_only_what_no_other_can_take(view: tuple) -> None:
    """Rule 2."""
    live = {each.name: each for each in view[0]}
    made = plan(*view)

    assert not any(live[move.target].gives_away for move in made.moves if not live[move.source].leaving)
    assert not any(live[move.target].leaving or live[move.target].lacks_server for move in made.moves)
    for queue in view[1]:
        holder = made.preferred.get(queue.shard)
        if holder is not None and live[holder].gives_away:
            left = queue.holder is not None and live[queue.holder].leaving and holder != queue.holder
            assert left <= live[holder].in_maintenance
            needs_server = live[holder].reason in LACKS
            assert not any(
                name in queue.waiting and not each.gives_away and (each.readiness == "ready" or not needs_server)
                for name, each in live.items()
            )


@given(views(heavy=True))
def test_only_settled_daemons_attract_shards(view: tuple) -> None:
    """Rule 4."""
    live = {each.name: each for each in view[0]}
    waiting = {each.shard: each.waiting for each in view[1]}

    for move in plan(*view).moves:
        if not live[move.target].settled:
            assert move.reason != "spread"
            assert not any(
                each.settled
                and not each.gives_away
                and (each.readiness == "ready" or move.reason not in LACKS)
                and name in waiting[move.shard]
                for name, each in live.items()
            )


def test_a_daemon_in_maintenance_is_emptied_evenly() -> None:
    view = cluster({0: "a", 1: "a", 2: "b", 3: "c"}, a={"in_maintenance": True})

    made = plan(*view)

    assert [(move.shard, move.target) for move in made.moves] == [(0, "b"), (1, "c")]
    assert {move.reason for move in made.moves} == {"maintenance"}


def test_a_stopping_daemon_gives_its_shards_to_a_new_one_if_there_is_no_other() -> None:
    view = cluster({0: "a"}, "ab", a={"leaving": True}, b={"settled": False})

    assert plan(*view).moves == (Move(0, "a", "b", "shutdown"),)


@pytest.mark.parametrize("changed", [{"leaving": True}, {"in_maintenance": True}])
def test_a_daemon_is_emptied_to_the_successor_that_failed_least_often(changed: dict[str, bool]) -> None:
    """Rule 2: another one first, also one that has just started. The same one again if there is no other."""
    live, (queue,) = cluster({0: "a"}, a=changed, c={"settled": False}, daemons="abcd", d={"leaving": True})

    def target(**abandoned: int) -> str:
        (move,) = plan(live, [replace(queue, abandoned=abandoned)]).moves
        return move.target

    assert [target(), target(b=1), target(b=1, c=2), target(b=2, c=2)] == ["b", "c", "b", "b"]


@pytest.mark.parametrize("lack", ["no_broker", "no_store"])
def test_a_daemon_that_lacks_a_server_is_emptied_to_those_that_are_ready(lack: str) -> None:
    """Rule 2."""
    shards = dict.fromkeys(range(2), "a")
    lost = {"readiness": lack}

    made = plan(*cluster(shards, a=lost, b={"readiness": "doubtful"}))
    assert made.moves == (Move(0, "a", "c", lack), Move(1, "a", "c", lack))
    # The server was restarted: b was a little faster than a, and c is not there yet.
    assert plan(*cluster(shards, a=lost, b={"readiness": "doubtful"}, c=lost)).moves == ()
    # A daemon that stops does not choose.
    leaving = lost | {"leaving": True}
    assert plan(*cluster({0: "a"}, "ab", a=leaving, b={"readiness": "doubtful"})).moves == (
        Move(0, "a", "b", "shutdown"),
    )


def test_a_daemon_that_may_lack_a_server_attracts_no_shards() -> None:
    assert plan(*cluster(dict.fromkeys(range(4), "a"), "ab", b={"readiness": "doubtful"})).moves == ()


def test_a_stopping_daemon_gives_its_shards_to_one_in_maintenance_if_there_is_no_other() -> None:
    """That one would get the lock anyway, and only then begin to read the ledger."""
    shard, leaving, maintenance = {0: "a"}, {"leaving": True}, {"in_maintenance": True}

    assert plan(*cluster(shard, "ab", a=leaving, b=maintenance)).moves == (Move(0, "a", "b", "shutdown"),)
    assert plan(*cluster(shard, a=leaving, b=maintenance)).moves == (Move(0, "a", "c", "shutdown"),)
    for other in (maintenance | leaving, maintenance | {"readiness": "no_store"}):
        assert plan(*cluster(shard, "ab", a=leaving, b=other)).moves == ()


@pytest.mark.parametrize("state", [{"in_maintenance": True}, {"readiness": "no_broker"}, {"readiness": "no_store"}])
def test_the_last_daemon_keeps_its_shards(state: dict) -> None:
    assert plan(*cluster({0: "a"}, "ab", a=state, b={"in_maintenance": True})).moves == ()
    assert plan(*cluster({0: "a"}, "a", a={"leaving": True})).moves == ()


@given(views(heavy=True))
def test_a_shard_that_an_operator_transferred_is_not_spread(view: tuple) -> None:
    """Rule 5."""
    fixed = {each.shard for each in view[1] if each.fixed}

    assert not any(move.shard in fixed and move.reason == "spread" for move in plan(*view).moves)


def test_a_shard_without_a_live_holder_is_left_to_its_queue() -> None:
    """The lock passes on when the session of the holder ends."""
    live, queues = cluster({0: "gone", 1: "a"}, "ab")

    assert plan(live, queues) == Plan({1: "a"}, ())
