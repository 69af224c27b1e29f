"""Records as FastStream's messages, and what is published as records.

Content type, correlation id and reply topic are headers of a record, beside those of the program.
"""

from dataclasses import dataclass
from typing import Any, Final

from faststream.message import AckStatus, StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand, Response

from headgate import ConsumedRecord, RequestRejectedError
from headgate.model.headers import origin_of

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation-id"
REPLY_TO: Final = "reply-to"
Key = bytes | str | None


@dataclass
class Delivery:
    """A record on its way through a handler; FastStream's raw message."""

    record: ConsumedRecord
    topic_id: int = 0
    outcome: AckStatus | None = None
    """What the handler, or its acknowledgement policy, has decided."""


class HeadgateMessage(StreamMessage[Delivery]):
    """A record. `ack`, `nack` and `reject` decide what becomes of it once the handler has returned."""

    @property
    def record(self) -> ConsumedRecord:
        """Key, segment, offset, delivery count and the rest."""
        return self.raw_message.record

    async def ack(self) -> None:
        self._decide(AckStatus.ACKED)
        await super().ack()

    async def nack(self) -> None:
        self._decide(AckStatus.NACKED)
        await super().nack()

    async def reject(self) -> None:
        self._decide(AckStatus.REJECTED)
        await super().reject()

    def _decide(self, outcome: AckStatus) -> None:
        if self.committed is None:
            self.raw_message.outcome = outcome


async def parse_message(delivery: Delivery) -> HeadgateMessage:
    """Return a record's message. A header that is no UTF-8 stays bytes; of two with one name the last one counts."""
    record = delivery.record
    headers: dict[str, Any] = {name: _text(value) for name, value in record.headers}
    # A topic that is created again has another id. Dead letters of several segments have equal offsets.
    place = (origin_of(record.headers) if record.parked_number else None) or record
    where = f"{place.segment}/{place.offset}{'/parked' if record.parked_number else ''}"
    return HeadgateMessage(
        raw_message=delivery,
        body=record.value,
        headers=headers,
        reply_to=str(headers.get(REPLY_TO, "")),
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION_ID),
        message_id=f"{record.topic}/{delivery.topic_id}/{where}",
    )


async def decode(message: StreamMessage[Any]) -> Any:
    return decode_message(message)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def first_given(*keys: Key) -> Key:
    """Return the first key that is not None. An empty one is refused later: another key would lose its order."""
    return next((each for each in keys if each is not None), None)


class HeadgateResponse(Response):
    """What a handler returns to choose the key of the record that its publishers send."""

    def __init__(self, body: Any, *, key: Key = None, **fields: Any) -> None:
        """Take the ``fields`` of every response: headers and correlation_id."""
        super().__init__(body, **fields)
        self.key = key

    def as_publish_command(self) -> "HeadgatePublishCommand":
        fields = {"headers": self.headers, "correlation_id": self.correlation_id}
        return HeadgatePublishCommand(self.body, key=self.key, **fields)


class HeadgatePublishCommand(PublishCommand):
    """One record to be published."""

    def __init__(
        self, body: Any, *, key: Key = None, _publish_type: PublishType = PublishType.PUBLISH, **fields: Any
    ) -> None:
        """Take the ``fields`` of every command: destination, headers, correlation_id and reply_to."""
        super().__init__(body, _publish_type=_publish_type, **fields)
        self.key = key

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> "HeadgatePublishCommand":
        if isinstance(cmd, cls):
            return cmd
        made = cls(cmd.body)
        made.__dict__.update(cmd.__dict__)
        return made

    def key_bytes(self) -> bytes:
        """Return the key. A record needs one, and one without a key of its own has its correlation id."""
        key = first_given(self.key, self.correlation_id)
        if not key:
            raise RequestRejectedError("invalid", f"topic {self.destination!r}: the key is empty")
        return key.encode() if isinstance(key, str) else key

    def all_headers(self, content_type: str | None) -> dict[str, bytes]:
        """Return the headers of the record."""
        own = {CONTENT_TYPE: content_type, CORRELATION_ID: self.correlation_id, REPLY_TO: self.reply_to}
        headers = {**self.headers, **{name: value for name, value in own.items() if value}}
        return {name: value if isinstance(value, bytes) else str(value).encode() for name, value in headers.items()}
