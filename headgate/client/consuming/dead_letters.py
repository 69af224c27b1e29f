"""Send the dead records of a QUEUE, and the parked ones of a STREAM, to their dead-letter topics, each exactly once.

The leader names one consumer as the sender. It stores with each record, as the source position of a named producer,
when the record died and its number, which rise together. A record at or below the stored position is there already:
an earlier sender has stored it, and was lost before it could say so. A newer sender fences an older one by the
incarnation that the leader gives it. The producer's name ends with the digest of a secret that the leader gives only to
senders: so one of another user takes the name over.

A topic that cannot be written to keeps its dead records waiting, and no others. The leader learns why from the next
heartbeat.
"""

from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Final

import msgspec

from headgate.client.admin import Admin
from headgate.client.consuming.consumer_context import ConsumerContext
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import Delivery
from headgate.errors import (
    DeliveryFailedError,
    DeliveryUnknownError,
    NoLeaderError,
    RequestRejectedError,
    StoreUnavailableError,
)
from headgate.model.headers import without_origin
from headgate.protocol.replies import DeadLetter, HeartbeatReply
from headgate.protocol.request_fields import MAX_PROBLEM_CHARACTERS

SEND_SECONDS: Final = 30.0
"""How long storing one dead letter may take before the sender reports the problem, and tries again."""

UNSENT: Final = (DeliveryFailedError, DeliveryUnknownError, NoLeaderError, RequestRejectedError, StoreUnavailableError)

Heartbeat = Callable[[], Awaitable[HeartbeatReply]]


class DeadLetterSender:
    """The dead letters of one consumer's subscription, while it is their sender."""

    def __init__(self, context: ConsumerContext) -> None:
        self.problem = ""
        """Why some could not be sent; empty: they could."""
        self.heartbeat: Heartbeat | None = None
        """Asks for what is to be sent next."""
        self._context = context
        self._sending = False

    def start(self) -> None:
        """Send until there are no more, or one cannot be sent. The next heartbeat that has some starts it again."""
        if not self._sending:
            self._sending = True
            self._context.tasks.spawn(self._send_all(), "dead-letters")

    async def _send_all(self) -> None:
        assert self.heartbeat is not None, "the membership has not begun"
        try:
            while True:
                alive = await self.heartbeat()
                known, self.problem = self.problem, ""
                if not alive.dead_letters:
                    return
                await self._send(alive)
                if self.problem:
                    if self.problem != known:  # once: an operator acts, or it ends
                        self._context.log.error("dead_letters.not_sent", reason=self.problem)
                    return
        except (NoLeaderError, RequestRejectedError) as error:
            self._context.log.warning("dead_letters.interrupted", reason=str(error))
        finally:
            self._sending = False

    async def _send(self, alive: HeartbeatReply) -> None:
        producer = Producer.of_program(
            self._context.client,
            self._context.requests.dead_letter_producer(alive),
            ProducerSettings(delivery_timeout_seconds=SEND_SECONDS, reserved_headers=True),
        )
        async with producer:
            letters = sorted(alive.dead_letters, key=lambda each: (each.topic, each.number))
            for topic, of_topic in groupby(letters, key=lambda each: each.topic):
                stored: list[tuple[int, int]] = []
                try:
                    await self._send_to(producer, topic, list(of_topic), stored)
                except UNSENT as error:
                    self.problem = f"dead-letter topic {topic!r}: {error}"[:MAX_PROBLEM_CHARACTERS]
                if stored:
                    await self._context.requests.confirm_dead_letters(stored)

    async def _send_to(
        self, producer: Producer, topic: str, letters: list[DeadLetter], stored: list[tuple[int, int]]
    ) -> None:
        """Send ``letters`` to ``topic``; add what is there to ``stored``."""
        await producer.open(topic)
        if any(each.parked_number for each in letters):
            await self._keep(topic)
        position = producer.source_position
        last = (0, 0) if position is None else msgspec.msgpack.decode(position, type=tuple[int, int])
        sent = [
            (letter, await self._store(producer, letter) if (letter.died_at_ms, letter.number) > last else None)
            for letter in letters
        ]
        for letter, delivery in sent:
            if delivery is not None:
                await delivery
            stored.append((letter.number, letter.died_at_ms))

    async def _keep(self, topic: str) -> None:
        """Let retention wait for parked records: the topic may have been created again since the policy was set."""
        try:
            async with Admin(self._context.client, timeout_seconds=SEND_SECONDS) as admin:
                keeper = self._context.requests.keeper
                await admin.create_subscription(topic, keeper, type="QUEUE", start="earliest", if_absent=True)
        except RequestRejectedError as error:
            self._context.log.warning("dead_letters.not_kept", topic=topic, reason=str(error))

    async def _store(self, producer: Producer, letter: DeadLetter) -> Delivery:
        found = await self._context.feed.read_one(letter.segment, letter.offset, letter.start_chunk)
        _, (timestamp_ms,), (key,), (value,), (headers,) = found
        # A record that was dead before keeps its newest origin only.
        headers = (*without_origin(headers), *self._context.requests.origin(letter).headers())
        position = msgspec.msgpack.encode((letter.died_at_ms, letter.number))
        return await producer.send(
            letter.topic, key, value, headers=headers, timestamp_ms=timestamp_ms, source_position=position
        )
