"""Which followed shards stay in memory, rule by rule."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.leadership.policy.spread import plan
from controller.leadership.policy.standby import FollowedShard, Use, successors, warm_shards
from tests.controller.leadership.policy.test_spread import after, cluster, views

FOLLOWED = st.builds(FollowedShard, st.integers(0, 50), st.integers(0, 100), st.sampled_from(Use), warm=st.booleans())


def test_the_shards_that_it_takes_over_next_come_first() -> None:
    followed = [FollowedShard(0, 60), FollowedShard(1, 60, Use.NEXT), FollowedShard(2, 40)]

    assert {1, 2} == warm_shards(followed, 100)


def test_a_shard_that_it_would_not_take_over_is_not_read_and_is_released() -> None:
    assert set() == warm_shards([FollowedShard(0, 10, Use.NONE), FollowedShard(1, 10, Use.NONE, warm=True)], 100)


def test_a_former_successor_keeps_what_is_in_memory_for_a_while_behind_the_others() -> None:
    followed = [FollowedShard(0, 50, Use.FORMER, warm=True), FollowedShard(1, 50, Use.FORMER), FollowedShard(2, 50)]

    assert {0, 2} == warm_shards(followed, 150)
    assert {2} == warm_shards(followed, 90)


@given(st.lists(FOLLOWED, unique_by=lambda each: each.shard), st.integers(0, 300), st.randoms())
def test_the_limit_holds_and_the_order_of_the_input_is_irrelevant(followed, limit, rng) -> None:
    chosen = warm_shards(followed, limit)
    shuffled = list(followed)
    rng.shuffle(shuffled)

    assert sum(each.size_bytes for each in followed if each.shard in chosen) <= limit
    assert chosen == warm_shards(shuffled, limit)


@given(st.lists(FOLLOWED, unique_by=lambda each: each.shard), st.integers(0, 300))
def test_the_choice_is_stable(followed, limit) -> None:
    """Nothing is released and read again while nothing changes."""
    chosen = warm_shards(followed, limit)
    after = [FollowedShard(each.shard, each.size_bytes, each.use, warm=each.shard in chosen) for each in followed]

    assert chosen == warm_shards(after, limit)


DAEMONS = "abcdefgh"
EVEN = cluster({shard: DAEMONS[shard % 8] for shard in range(64)}, DAEMONS)


@given(views(heavy=True), st.integers(1, 3))
def test_a_successor_waits_in_the_queue_and_keeps_its_shards(view: tuple, replicas: int) -> None:
    """Rule 1."""
    live = {each.name: each for each in view[0]}
    found = successors(*view, replicas)

    for queue in view[1]:
        able = [name for name in queue.waiting if name in live and live[name].stays]
        assert set(found[queue.shard]) <= set(able)
        lacking = [live[name].lacks_server for name in found[queue.shard]]
        assert lacking == sorted(lacking)
        assert len(found[queue.shard]) == len(set(found[queue.shard])) == min(replicas, len(able))


@given(views(heavy=True), st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_irrelevant(view: tuple, rng: random.Random) -> None:
    """Otherwise two daemons would disagree."""
    live, queues = list(view[0]), list(view[1])
    rng.shuffle(live)
    rng.shuffle(queues)

    assert successors(live, queues, 2) == successors(*view, 2)


def test_the_shards_of_a_leader_are_divided_among_the_others() -> None:
    """Rule 3: eight shards, seven others. And no daemon keeps what all do."""
    found = successors(*EVEN, 2)

    for leader in DAEMONS:
        firsts = Counter(found[queue.shard][0] for queue in EVEN[1] if queue.holder == leader)
        assert sorted(firsts.values()) == [1] * 6 + [2]
    kept = Counter(name for names in found.values() for name in names)
    assert max(kept.values()) < 32


def test_the_first_successor_gets_the_shard_when_the_leader_stops() -> None:
    """Rule 3. Also when other daemons have stopped before."""
    live, queues = EVEN
    for leader in "ac":
        live = [replace(each, leaving=each.leaving or each.name == leader) for each in live]
        expected = successors(
            [replace(each, leaving=False) if each.name == leader else each for each in live], queues, 1
        )
        moves = plan(live, queues).moves
        assert [(move.target,) for move in moves] == [expected[move.shard] for move in moves]
        live, queues = after((live, queues), moves)


@given(views(troubled=False))
def test_the_target_of_a_move_is_the_first_successor_until_it_leads(view: tuple) -> None:
    """Rule 2. The first move of a plan changes no other successors, so each state is read once."""
    moves = plan(*view).moves
    before = successors(*view, 2)
    assert [before[move.shard][0] for move in moves] == [move.target for move in moves]
    if not moves:
        return
    changed = successors(*after(view, moves[:1]), 2)
    assert {shard for shard in before if before[shard] != changed[shard]} <= {moves[0].shard}


def test_a_daemon_that_comes_changes_few_of_the_later_successors() -> None:
    """Rule 4. Until it has settled, it attracts nothing."""
    live, queues = EVEN
    new = replace(live[0], name="new", settled=False)
    joined = [replace(each, waiting=each.waiting | {"new"}) for each in queues]

    assert successors([*live, new], joined, 2) == successors(*EVEN, 2)


def test_the_order_of_later_successors_is_the_same_on_every_version() -> None:
    """Rule 4. Daemons of two versions decide together during an upgrade."""
    found = successors(*cluster({100: "u", 101: "v"}, "uvwxyz"), 5)

    assert ["".join(found[shard][1:]) for shard in (100, 101)] == ["xyzv", "xyuz"]
