"""Subscribers: `Consumer.run` calls the handler, and what the handler decides becomes the outcome of the record.

========= ================================================= ====================================================
decision  STREAM                                            QUEUE
========= ================================================= ====================================================
ack       acknowledged, up to the first unhandled record    acknowledged
nack      the handler is called again after a pause, and    delivered again, with a higher delivery count, until
          the record's key waits; after the last attempt    it goes to the dead-letter topic
          the key is parked
reject    the key is parked: its records go to the          as nack
          dead-letter topic, in order
========= ================================================= ====================================================

A record on which a handler with AckPolicy.MANUAL decides nothing counts as nacked.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import AckStatus
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from headgate import ConsumedRecord, Consumer, RetryPolicy, SubscriptionType
from headgate_faststream.messages import Delivery, HeadgateMessage, decode, parse_message
from headgate_faststream.publisher import ReplyPublisher

RESTART_SECONDS: Final = 5.0
"""Pause before a consumer that has ended with an error is opened again."""


class NackedError(Exception):
    """A handler, or its acknowledgement policy, wants the record again."""


class RejectedError(Exception):
    """A handler, or its acknowledgement policy, never wants the record again."""


def retry_policy(kind: SubscriptionType, given: RetryPolicy | None) -> RetryPolicy:
    """Return what happens to records that are nacked; those that are rejected get the last action at once."""
    queue = kind == SubscriptionType.QUEUE
    chosen = given or (RetryPolicy(attempts=1, then="redeliver") if queue else RetryPolicy(then="park"))
    return replace(chosen, exceptions=(NackedError,))


@dataclass(kw_only=True)
class HeadgateSubscriberConfig(SubscriberUsecaseConfig):
    topic: str
    subscription: str
    kind: SubscriptionType
    concurrency: int
    retry: RetryPolicy
    consumer: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        """A record is lost by no error, unless the program says so."""
        chosen = self._outer_config.ack_policy if self._ack_policy is EMPTY else self._ack_policy
        return AckPolicy.NACK_ON_ERROR if chosen is EMPTY else chosen


@dataclass(kw_only=True)
class HeadgateSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str


class HeadgateSubscriberSpecification(SubscriberSpecification[Any, Any]):
    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:{self.call_name}"

    def get_schema(self) -> dict[str, SubscriberSpec]:
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        operation = Operation(message=message, bindings=None)
        return {
            self.name: SubscriberSpec(
                description=self.description, operation=operation, bindings=None, address=self.topic
            )
        }


class HeadgateSubscriber(TasksMixin, SubscriberUsecase[Delivery]):
    """A consumer of one subscription."""

    def __init__(self, config: HeadgateSubscriberConfig, specification: Any, calls: Any) -> None:
        config.parser, config.decoder = parse_message, decode
        super().__init__(config, specification, calls)
        self.config = config
        self._consumer: Consumer | None = None
        self._handling: set[asyncio.Task[Any] | None] = set()
        self._stopping = asyncio.Event()

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    async def start(self) -> None:
        await super().start()
        self._post_start()
        self._stopping.clear()
        if self.calls:
            self.add_task(self._run)

    async def stop(self) -> None:
        """Begin no further record, let handlers end, and store what they have acknowledged."""
        self._stopping.set()
        if self._consumer is not None:
            self._consumer.stop()
        if self.tasks and asyncio.current_task() not in self._handling:  # a handler may end the program
            await asyncio.wait(self.tasks, timeout=self._outer_config.graceful_timeout)
        await super().stop()

    async def _run(self) -> None:
        """Consume until `stop`. An error that ends the consumer is logged, and it is opened again."""
        own, client = self.config, self._outer_config.client_config
        while not self._stopping.is_set():
            try:
                async with Consumer(
                    client, topic=self.topic, subscription=own.subscription, type=own.kind, **own.consumer
                ) as self._consumer:
                    if not self._stopping.is_set():
                        await self._consumer.run(self._handle, concurrency=own.concurrency, retry=own.retry)
            except Exception as error:
                text = f"the consumer of {self.topic}/{own.subscription} has ended: {error!r}"
                self._outer_config.logger.log(text, logging.ERROR, self.get_log_context(None), exc_info=error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), RESTART_SECONDS)
            else:
                return

    async def _handle(self, record: ConsumedRecord) -> None:
        """Let FastStream call the handler; raise what `Consumer.run` treats as its retry policy says."""
        if not self.running:  # FastStream calls no handler any more: the record is neither acknowledged nor refused
            await asyncio.Event().wait()
        delivery, task = Delivery(record, self._consumer.topic_id if self._consumer else 0), asyncio.current_task()
        self._handling.add(task)
        try:
            await self.consume(delivery)
        finally:
            self._handling.discard(task)
        if delivery.outcome is AckStatus.REJECTED:
            raise RejectedError(f"{self.topic}/{record.segment}/{record.offset} was rejected")
        if delivery.outcome is not AckStatus.ACKED:
            raise NackedError(f"{self.topic}/{record.segment}/{record.offset} was not acknowledged")

    def _make_response_publisher(self, message: HeadgateMessage) -> Sequence[Any]:
        return (ReplyPublisher(self._outer_config.producer, message.reply_to, message.record.key),)

    def get_log_context(self, message: HeadgateMessage | None) -> dict[str, str]:
        return {"topic": self.topic, "message_id": "" if message is None else str(message.message_id)}

    async def get_one(self, *, timeout: float = 5.0) -> HeadgateMessage | None:
        raise FeatureNotSupportedException("take single records with headgate.Consumer.get_many")

    async def __aiter__(self) -> Any:
        raise FeatureNotSupportedException("iterate over a headgate.Consumer")
        yield
