"""Which followed shards stay in memory, rule by rule."""

from hypothesis import given
from hypothesis import strategies as st

from controller.leadership.policy.standby import FollowedShard, Use, warm_shards

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
