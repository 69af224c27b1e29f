"""Who has how much of a shard: counted with each change, and equal to a count of everything."""

from collections import Counter

import pytest

from shard.state.usage import Usage
from tests.support.samples.histories import History


def random_history(seed: int) -> History:
    history = History(seed)
    history.grow(60)
    return history


@pytest.mark.parametrize("seed", range(12))
def test_the_counts_equal_a_count_of_everything(seed: int) -> None:
    state = random_history(seed).state
    counted = Usage()
    for topic in state.topics.values():
        counted.add_topic(topic)

    assert counted == state.usage
    assert all(count > 0 for count in state.usage.values())


@pytest.mark.parametrize("seed", range(12))
def test_the_producers_of_each_user_are_counted_and_ordered_by_use(seed: int) -> None:
    history = random_history(seed)
    producers = history.state.producers

    assert Counter(producer.user for producer in history.state.producers.values()) == Counter(
        {user: producers.count_of(user) for user in ("u0", "u1") if producers.count_of(user)}
    )
    for user in ("u0", "u1"):
        assert [each for each in producers.anonymous.values() if each.user == user] == list(
            producers.anonymous_of(user)
        )
