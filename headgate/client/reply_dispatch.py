"""Hand each message of the leaders to who waits for it: replies by request, pushes by consumer, parts when complete."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from headgate.errors import ProtocolError
from headgate.protocol import codec
from headgate.protocol.codec import PartCollector
from headgate.protocol.replies import AnyReply, MessagePart, Push, Rejected, Reply, ReplyBody

BodyT = TypeVar("BodyT", bound=ReplyBody)

ReplyHandler = Callable[[Reply], None]
PushHandler = Callable[[Push], None]
ConsumerKey = tuple[str, str, str]


class ReplyDispatch:
    """The handlers of one client. Messages that nothing waits for are ignored: replies can be late or doubled."""

    def __init__(
        self, on_undecodable: Callable[[str, msgspec.DecodeError], None], on_shards: Callable[[list[int]], None]
    ) -> None:
        """``on_undecodable`` gets the kind and the error of a message in parts that cannot be decoded.

        ``on_shards`` gets the numbers of shards that a refusal names, before what waits for the reply.
        """
        self._on_shards = on_shards
        self._on_undecodable = on_undecodable
        self._parts = PartCollector()
        self._replies: dict[int, ReplyHandler] = {}
        self._pushes: dict[ConsumerKey, PushHandler] = {}

    def expect(self, request_id: int, handler: ReplyHandler) -> None:
        """Call ``handler`` with every reply to ``request_id``, until `forget`."""
        self._replies[request_id] = handler

    def forget(self, request_id: int) -> None:
        self._replies.pop(request_id, None)

    def expect_pushes(self, key: ConsumerKey, handler: PushHandler) -> None:
        """Call ``handler`` with every push to a consumer, until `forget_pushes`."""
        self._pushes[key] = handler

    def forget_pushes(self, key: ConsumerKey) -> None:
        self._pushes.pop(key, None)

    def dispatch(self, message: AnyReply) -> None:
        match message:
            case MessagePart():
                self._collect(message)
            case Reply():
                if isinstance(message.body, Rejected):
                    self._on_shards(message.body.shards)
                if (reply_handler := self._replies.get(message.request_id)) is not None:
                    reply_handler(message)
            case _:
                key = (message.topic, message.subscription, message.consumer)
                if (push_handler := self._pushes.get(key)) is not None:
                    push_handler(message)

    def _collect(self, part: MessagePart) -> None:
        payload = self._parts.add(part)
        if payload is None:
            return
        try:
            message = codec.decode_reply(payload)
        except msgspec.DecodeError as error:
            self._on_undecodable("parts", error)
            return
        if not isinstance(message, MessagePart):
            self.dispatch(message)


def body_of(reply: Reply, kind: type[BodyT], sender: str) -> BodyT:
    """Return the body of ``reply``, which has to be of type ``kind``. Raises ProtocolError: it names ``sender``."""
    if not isinstance(reply.body, kind):
        raise ProtocolError(
            f"{sender} answered {type(reply.body).__name__} instead of {kind.__name__}: update the older of this "
            "program's library and the daemons"
        )
    return reply.body
