"""What a trial counts as spread, and which topics it probes."""

from __future__ import annotations

import pytest

from headgate.model.hashing import shard_of
from scale.watch import is_even, topic_of_each_shard


@pytest.mark.parametrize(
    ("led", "even"),
    [
        ({"a": 3, "b": 3, "c": 2}, True),
        ({"a": 4, "b": 2, "c": 2}, False),
        ({"a": 4, "b": 4}, False),
        ({"a": 3, "b": 2, "c": 2}, False),
    ],
    ids=["by at most one", "by two", "a daemon leads none", "a shard has no leader"],
)
def test_shards_are_spread_if_all_are_led_and_counts_differ_by_at_most_one(led: dict[str, int], even: bool) -> None:
    assert even is is_even(led, 8, 3)


def test_the_first_topic_of_each_shard_is_probed() -> None:
    topics = [f"topic-{number}" for number in range(20)]
    found = topic_of_each_shard(topics, 4)
    assert set(range(4)) == set(found)
    assert all(shard == shard_of(topic, 4) for shard, topic in found.items())
    assert topics[0] in found.values()
