"""A program without any right that forges the retained announcements of the leader, its heads, and its chunks.

It invents epochs, repeats announcements of earlier terms, changes the present one, deletes it, and publishes garbage.
No other honest client may send a request for a term that has not begun: it would have believed an announcement.
"""

import asyncio

import msgspec

from headgate.protocol import codec
from headgate.protocol.codec import ChunkAnnouncement, HeadAnnouncement, LeaderAnnouncement
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.faulty_client import FaultyClient
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import Plan
from tests.simulation.rule_breaker import RuleBreaker
from tests.support.fakes.broker import FakeBroker, Message

LIARS = FaultyClient.CLIENT_ID, RuleBreaker.CLIENT_ID
"""They name terms that they have not asked for."""
LATEST_EPOCH = 2**31 - 1


class Forger:
    """Replaces announcements until it is cancelled; the last one remains."""

    CLIENT_ID = "forger"

    def __init__(self, plan: Plan, broker: FakeBroker, cluster: str, shard: int, checker: InvariantChecker) -> None:
        self.forged = 0
        self._epoch = checker.leadership.epoch
        self._deceived: str | None = None
        self._shard = shard
        self._rng = plan.rng("forger")
        # A reader believes that announced chunks are durable: with a folder, it would deliver what a power failure removes.
        self._heads = [1] if "power_failure" in plan.kinds else [1, 2**62]
        self._topic, self._head_topic = codec.leader_topic(cluster, shard), codec.head_topic(cluster, shard)
        self._chunk_topic = codec.chunk_topic(cluster, shard)
        self._requests = codec.requests_topic(cluster, shard, "")
        self._transport = broker.transport(self.CLIENT_ID)
        self._chunk: ChunkAnnouncement | None = None
        self._genuine: list[LeaderAnnouncement] = []
        broker.spies.append(self._overhear)

    async def run(self) -> None:
        """Forge announcements, sometimes many in a row."""
        async with self._transport:
            while True:
                await asyncio.sleep(self._rng.choice([0.01, self._rng.uniform(0.2, 8)]))
                if self._deceived is not None:
                    raise BrokenPromiseError(self._deceived)
                stated = {"ledger_id": self._genuine[-1].ledger_id} if self._genuine else {}
                head = {"shard": self._shard, "leader_epoch": LATEST_EPOCH, "head": self._rng.choice(self._heads)}
                self._transport.publish(self._head_topic, codec.encode(HeadAnnouncement(**head, **stated)))
                if self._chunk is not None:
                    number, data = self._chunk.number + 1, (b"PAR1", self._chunk.object)[self.forged % 2]
                    forged = msgspec.structs.replace(self._chunk, number=number, object=data)
                    self._transport.publish(self._chunk_topic, codec.encode(forged))
                if self._genuine:
                    self.forged += self._transport.publish(self._topic, self._forgery(), retain=True)

    def _forgery(self) -> bytes:
        newest = self._genuine[-1]
        return self._rng.choice(
            [
                codec.encode(msgspec.structs.replace(newest, leader_epoch=LATEST_EPOCH)),
                codec.encode(msgspec.structs.replace(newest, leader_epoch=newest.leader_epoch + 1, instance="forged")),
                codec.encode(msgspec.structs.replace(newest, window=1)),
                codec.encode(self._rng.choice(self._genuine)),
                b"",
                b"not msgpack",
            ]
        )

    def _overhear(self, message: Message) -> None:
        if message.topic == self._topic and message.sender != self.CLIENT_ID:
            self._genuine.append(msgspec.msgpack.decode(message.payload, type=LeaderAnnouncement))
        elif message.topic == self._chunk_topic and message.sender != self.CLIENT_ID:
            self._chunk = msgspec.msgpack.decode(message.payload, type=ChunkAnnouncement)
        elif message.topic.startswith(self._requests) and message.sender not in LIARS:
            request = codec.decode_request(message.payload)
            if request.leader_epoch is not None and request.leader_epoch > self._epoch(self._shard):
                self._deceived = (
                    f"{request.client_id} believes in term {request.leader_epoch} of shard {self._shard}, "
                    f"and term {self._epoch(self._shard)} is the newest one"
                )
