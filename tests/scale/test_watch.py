"""What a trial counts as spread, and which topics it probes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from headgate.model.hashing import shard_of
from headgate.protocol import messages as m
from scale.watch import LeaderView, is_even, topic_of_each_shard


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


@pytest.mark.looptime
async def test_a_leader_that_was_known_before_is_no_leader_of_a_later_term() -> None:
    """After a restart of all daemons, the view still has the former leaders of the same names."""
    known = {0: announcement(0, 3), 1: announcement(1, 7)}
    view = LeaderView(SimpleNamespace(leader=known.get), shards=3)
    before = view.epochs()
    assert before == {0: 3, 1: 7, 2: 0}

    waiting = asyncio.create_task(view.until_later(before, 60))
    known[0], known[2] = announcement(0, 4), announcement(2, 1)
    await asyncio.sleep(1)
    assert not waiting.done()
    known[1] = announcement(1, 8)
    await asyncio.sleep(0.1)
    assert waiting.done()
    await waiting


def announcement(shard: int, epoch: int) -> m.LeaderAnnouncement:
    return m.LeaderAnnouncement(shard=shard, leader_epoch=epoch, instance="daemon-1", pipelining=True, window=1)
