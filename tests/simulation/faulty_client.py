"""A client that repeats committed batches of other producers with changed records.

No leader may report them as stored.
"""

import asyncio
import itertools
import random
from collections.abc import Callable

import msgspec

from headgate.protocol import codec
from headgate.protocol.codec import client_address, replies_topic, requests_topic
from headgate.protocol.replies import Committed, Rejected, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import ProduceBatch, Record, Request
from tests.simulation.invariant_checker import BrokenPromiseError, InvariantChecker
from tests.support.fakes.broker import FakeBroker, Message


class FaultyClient:
    """Overhears committed batches, and sends as many other records under their sequences."""

    CLIENT_ID = "faulty"

    def __init__(self, rng: random.Random, broker: FakeBroker, cluster: str, shard: int) -> None:
        self._rng = rng
        self._cluster = cluster
        self._transport = broker.transport(self.CLIENT_ID)
        self._requests = requests_topic(cluster, shard, client_address(None, self.CLIENT_ID))
        self._sent: dict[tuple[str, int], ProduceBatch] = {}
        self._committed: ProduceBatch | None = None
        self._leader_epoch, self._ledger_id = 0, b""
        broker.spies.append(self._overhear)

    async def run(self, checker: InvariantChecker, fail: Callable[[BaseException], None]) -> None:
        """Send changed batches until cancelled; count those refused, and call ``fail`` if one is reported as stored."""
        async with self._transport:
            await self._transport.subscribe(
                replies_topic(self._cluster, client_address(None, self.CLIENT_ID)),
                lambda _, payload: self._check(payload, checker, fail),
            )
            for request_id in itertools.count(1):
                await asyncio.sleep(self._rng.uniform(1, 5))
                if self._committed is not None:
                    changed = [Record(record.key, b"changed", 0) for record in self._committed.records]
                    request = Request(
                        request_id=request_id,
                        protocol=PROTOCOL_VERSION,
                        client_id=self.CLIENT_ID,
                        leader_epoch=self._leader_epoch,
                        ledger_id=self._ledger_id,
                        body=msgspec.structs.replace(self._committed, records=changed),
                    )
                    self._transport.publish(self._requests, codec.encode(request))

    def _check(self, payload: bytes, checker: InvariantChecker, fail: Callable[[BaseException], None]) -> None:
        reply = codec.decode_reply(payload)
        assert isinstance(reply, Reply)
        if isinstance(reply.body, Rejected):
            checker.changed_batches_refused += reply.body.verdict == "invalid"
        elif reply.body.topic_id is not None:  # otherwise older than the window, so its content is forgotten
            fail(BrokenPromiseError("a changed batch was reported as stored"))

    def _overhear(self, message: Message) -> None:
        if "/requests/" in message.topic:
            request = codec.decode_request(message.payload)
            if isinstance(request.body, ProduceBatch) and request.client_id != self.CLIENT_ID:
                self._sent[request.client_id, request.request_id] = request.body
        elif message.topic.endswith("/replies"):
            reply = codec.decode_reply(message.payload)
            if isinstance(reply, Reply) and isinstance(reply.body, Committed):
                batch = self._sent.pop((message.topic.split("/")[-2], reply.request_id), None)
                self._committed, self._leader_epoch = batch or self._committed, reply.leader_epoch
                self._ledger_id = reply.ledger_id
