"""The places of a topic follow from its name and the numbers of shards, the newest first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.layout import ShardMap, shard_of

COUNTS = st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(sorted)


@pytest.mark.parametrize(
    ("counts", "places"),
    [([4], (1,)), ([4, 16], (9, 1)), ([4, 5], (4, 1)), ([1, 4, 8], (1, 0)), ([2, 3, 5], (4, 0, 1))],
)
def test_places_are_distinct_and_the_newest_is_first(counts: list[int], places: tuple[int, ...]) -> None:
    """The hash of "orders" is 0x75184c89."""
    assert ShardMap(tuple(counts)).candidates("orders") == places


@given(COUNTS, st.text(min_size=1))
def test_a_longer_list_keeps_the_places_of_a_shorter_one(counts: list[int], topic: str) -> None:
    for length in range(1, len(counts)):
        earlier, later = ShardMap(tuple(counts[:length])), ShardMap(tuple(counts))
        assert later.extends(earlier.counts)
        assert not earlier.extends(later.counts)
        assert set(earlier.candidates(topic)) <= set(later.candidates(topic))
    assert later.candidates(topic)[0] == shard_of(topic, counts[-1]) if len(counts) > 1 else True
