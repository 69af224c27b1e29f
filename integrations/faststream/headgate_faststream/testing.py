"""Run handlers without a cluster: what is published goes to the subscribers of its topic, at once and in order."""

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

from faststream._internal.testing.broker import TestBroker, change_producer

from headgate import ConsumedRecord, RecordMetadata
from headgate.model.identifiers import Generation, Offset, SegmentId
from headgate_faststream.broker import HeadgateBroker
from headgate_faststream.messages import Delivery, HeadgatePublishCommand
from headgate_faststream.publisher import HeadgateProducer, HeadgatePublisher
from headgate_faststream.subscriber import HeadgateSubscriber


class TestHeadgateBroker(TestBroker[HeadgateBroker, Any], broker=HeadgateBroker):  # type: ignore[call-arg]
    """FastStream's test broker: ``async with TestHeadgateBroker(broker) as broker``."""

    def create_publisher_fake_subscriber(
        self, broker: HeadgateBroker, publisher: HeadgatePublisher
    ) -> tuple[HeadgateSubscriber, bool]:
        found = [each for other in self.brokers for each in other.subscribers if each.topic == publisher.topic]
        if found:
            return found[0], True
        return broker.subscriber(publisher.topic, subscription="test", persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: HeadgateBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, _FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: HeadgateBroker, *_: Any, **__: Any) -> None:
        """Connect to nothing."""


class _FakeProducer(HeadgateProducer):
    def __init__(self, broker: HeadgateBroker, brokers: Any) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        self._offsets: defaultdict[str, count[int]] = defaultdict(count)
        self.serializer = broker.config.fd_config._serializer

    async def publish(self, cmd: HeadgatePublishCommand) -> RecordMetadata:
        value, content_type = await self.codec.encode(cmd.body, self.serializer)
        offset, segment = Offset(next(self._offsets[cmd.destination])), SegmentId(0)
        headers = tuple(cmd.all_headers(content_type).items())
        record = ConsumedRecord(
            cmd.destination, segment, offset, cmd.key_bytes(), value, 0, generation=Generation(1), headers=headers
        )
        for subscriber in [x for broker in self._brokers for x in broker.subscribers if x.topic == cmd.destination]:
            await subscriber.process_message(Delivery(record))
        return RecordMetadata(segment, offset, duplicate=False, topic_id=1)
