"""A program without any right that forges the retained announcements of the leader, and its heads.

It invents epochs, repeats announcements of earlier terms, changes the present one, deletes it, and publishes garbage.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from headgate.protocol import messages as m
from tests.support.fakes.broker import FakeBroker, Message

LATEST_EPOCH = 2**31 - 1


class Forger:
    """Replaces announcements until it is cancelled; the last one remains."""

    CLIENT_ID = "forger"

    def __init__(self, rng: random.Random, broker: FakeBroker, cluster: str, shard: int) -> None:
        self.forged = 0
        self._shard = shard
        self._rng = rng
        self._topic, self._head_topic = m.leader_topic(cluster, shard), m.head_topic(cluster, shard)
        self._transport = broker.transport(self.CLIENT_ID)
        self._genuine: list[m.LeaderAnnouncement] = []
        broker.spies.append(self._overhear)

    async def run(self) -> None:
        """Forge announcements, sometimes many in a row."""
        async with self._transport:
            while True:
                await asyncio.sleep(self._rng.choice([0.01, self._rng.uniform(0.2, 8)]))
                head = m.HeadAnnouncement(
                    shard=self._shard, leader_epoch=LATEST_EPOCH, head=self._rng.choice([1, 2**62])
                )
                self._transport.publish(self._head_topic, m.encode(head))
                if self._genuine:
                    self.forged += self._transport.publish(self._topic, self._forgery(), retain=True)

    def _forgery(self) -> bytes:
        newest = self._genuine[-1]
        return self._rng.choice(
            [
                m.encode(msgspec.structs.replace(newest, leader_epoch=LATEST_EPOCH)),
                m.encode(msgspec.structs.replace(newest, leader_epoch=newest.leader_epoch + 1, instance="forged")),
                m.encode(msgspec.structs.replace(newest, window=1, pipelining=False)),
                m.encode(self._rng.choice(self._genuine)),
                b"",
                b"not msgpack",
            ]
        )

    def _overhear(self, message: Message) -> None:
        if message.topic == self._topic and message.sender != self.CLIENT_ID:
            self._genuine.append(msgspec.msgpack.decode(message.payload, type=m.LeaderAnnouncement))
