"""Daemons keep the states of the shards that they would take over, and others are ready before they lead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from controller.leader.shard_spreader import VIEW_INTERVAL_SECONDS
from controller.leadership.policy.standby import LINGER_SECONDS
from controller.settings.sections import SpreadSettings
from headgate.model import entries as e
from headgate.model.hashing import shard_of
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender

pytestmark = pytest.mark.looptime
SHARDS = 8
TOPICS = {shard_of(name, SHARDS): name for name in (f"topic-{number}" for number in range(100))}
SETTINGS = SpreadSettings(settle_seconds=5)
STEADY_SECONDS = LINGER_SECONDS + 2 * VIEW_INTERVAL_SECONDS
"""After which former successors have released their states."""


class Daemons:
    """Daemons of one cluster."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.cluster = Cluster()
        self.all: list[Contender] = []
        self._stack = stack

    async def start(self, name: str) -> Contender:
        daemon = Contender(self.cluster, name, contends_for=SHARDS, shards=SHARDS, spread=SETTINGS)
        await self._stack.enter_async_context(daemon.running())
        self.all.append(daemon)
        return daemon

    async def even(self) -> None:
        """Start four, to which eight shards with a topic each are spread evenly."""
        first = await self.start("a")
        await until(lambda: len(first.led) == SHARDS)
        for controller in first.controllers:
            assert controller.leader is not None
            controller.leader.commit.propose(
                e.TopicCreated(topic_id=1, topic=TOPICS[controller.shard], segments=4, token="t")
            )
            await controller.leader.commit.flush()
        for name in "bcd":
            await self.start(name)
        await until(lambda: [len(each.led) for each in self.all] == [2] * 4, 300)
        await until(lambda: all(len(self.keepers(shard)) == 2 for shard in range(SHARDS)), 2 * STEADY_SECONDS)

    def leader(self, shard: int) -> Contender:
        return next(each for each in self.all if shard in each.led)

    def keepers(self, shard: int) -> set[str]:
        """The daemons that follow the shard with its state in memory."""
        return {
            each.name for each in self.all if shard not in each.led and each.controllers[shard].follower.state.topics
        }


@pytest.fixture
async def daemons() -> AsyncIterator[Daemons]:
    async with AsyncExitStack() as stack:
        yield Daemons(stack)


async def test_a_lost_leader_finds_a_successor_with_the_state_for_each_shard(daemons: Daemons) -> None:
    await daemons.even()
    lost = daemons.all[0]
    expected = {shard: lost.spreader.successors[shard][0] for shard in lost.led}
    assert len(set(expected.values())) == 2, "its shards are divided"
    for shard, name in expected.items():
        assert name in daemons.keepers(shard)

    daemons.cluster.zookeeper.partition("a")
    daemons.all.remove(lost)
    await until(lambda: all(any(shard in each.led for each in daemons.all) for shard in expected), 20)

    assert {shard: daemons.leader(shard).name for shard in expected} == expected
