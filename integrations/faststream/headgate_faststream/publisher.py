"""Publishers: each `publish` returns when the record is durable."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from headgate import Producer, RecordMetadata
from headgate_faststream.messages import HeadgatePublishCommand, Key, decode, first_given, parse_message

NO_REQUESTS: Final = "headgate has no request and reply: publish with `reply_to`, and subscribe to that topic"


class HeadgateProducer:
    """What every publisher of a broker sends with."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        self._parser, self._decoder = ParserComposition(parser, parse_message), ParserComposition(decoder, decode)
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self.producer: Producer | None = None

    async def publish(self, cmd: HeadgatePublishCommand) -> RecordMetadata:
        if self.producer is None:
            raise IncorrectState("the broker is not connected: call connect() or start() first")
        value, content_type = await self.codec.encode(cmd.body, self.serializer)
        headers = cmd.all_headers(content_type)
        return await self.producer.send_and_wait(cmd.destination, cmd.key_bytes(), value, headers=headers)

    async def request(self, cmd: HeadgatePublishCommand) -> Any:
        raise FeatureNotSupportedException(NO_REQUESTS)

    async def publish_batch(self, cmd: HeadgatePublishCommand) -> Any:
        raise FeatureNotSupportedException("publish records one by one: the client batches what is sent together")


class ReplyPublisher(FakePublisher):
    """Sends what a handler returns to the topic that its record names."""

    def __init__(self, producer: Any, topic: str, key: Key) -> None:
        super().__init__(producer=producer)
        self._topic, self._key = topic, key

    def patch_command(self, cmd: PublishCommand) -> HeadgatePublishCommand:
        reply = HeadgatePublishCommand.from_cmd(super().patch_command(cmd))
        reply.destination, reply.key = self._topic, first_given(reply.key, self._key)
        return reply


@dataclass(kw_only=True)
class HeadgatePublisherConfig(PublisherUsecaseConfig):
    topic: str
    key: Key
    headers: dict[str, str]


@dataclass(kw_only=True)
class HeadgatePublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


class HeadgatePublisherSpecification(PublisherSpecification[Any, Any]):
    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        operation = Operation(message=message, bindings=None)
        return {
            self.name: PublisherSpec(
                description=self.config.description_, operation=operation, bindings=None, address=self.topic
            )
        }


class HeadgatePublisher(PublisherUsecase):
    """Publishes to one topic."""

    def __init__(self, config: HeadgatePublisherConfig, specification: HeadgatePublisherSpecification) -> None:
        super().__init__(config, specification)
        self._topic, self.key, self.headers = config.topic, config.key, config.headers

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(self, message: Any, topic: str = "", *, key: Key = None, **fields: Any) -> RecordMetadata:
        """Store a record, and return where it is; see `HeadgateBroker.publish`."""
        fields["headers"] = self.headers | (fields.get("headers") or {})
        fields["correlation_id"] = fields.get("correlation_id") or self._outer_config.id_generator()
        cmd = HeadgatePublishCommand(message, destination=topic or self.topic, key=first_given(key, self.key), **fields)
        return await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        """Publish what a handler has returned: under the key of its record, if it chose none."""
        cmd = HeadgatePublishCommand.from_cmd(cmd)
        cmd.destination = cmd.destination or self.topic
        cmd.add_headers(self.headers, override=False)
        handled = self._outer_config.fd_config.context.get_local("message")
        cmd.key = first_given(cmd.key, self.key, None if handled is None else handled.record.key)
        await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(self, *_: Any, **__: Any) -> Any:
        raise FeatureNotSupportedException(NO_REQUESTS)
