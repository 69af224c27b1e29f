"""Encode messages as msgpack, and decode them.

Decoders accept any bytes: whatever is wrong with them surfaces as `msgspec.DecodeError`.
"""

from typing import TypeVar

import msgspec

from headgate.protocol.announcements import Presence
from headgate.protocol.mqtt_topics import client_address, sender_of_presence, user_of
from headgate.protocol.replies import AnyReply
from headgate.protocol.requests import Request

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Limit for the payload of any message. A leader does not decode larger requests, even if the broker lets them pass."""

encode = msgspec.msgpack.Encoder().encode
"""Return a message as bytes."""
_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_PRESENCE: msgspec.msgpack.Decoder[Presence] = msgspec.msgpack.Decoder(Presence)
_REPLY: msgspec.msgpack.Decoder[AnyReply] = msgspec.msgpack.Decoder(AnyReply)

Message = TypeVar("Message")


def decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes) -> Message:
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def decode_request(data: bytes) -> Request:
    """Return the request in ``data``; raises msgspec.DecodeError, also for values beyond a limit."""
    return decode(_REQUEST, data)


def decode_reply(data: bytes) -> AnyReply:
    return decode(_REPLY, data)


def read_presence(mqtt_topic: str, data: bytes) -> Presence:
    """Return the presence in ``data``, published to ``mqtt_topic``. Its ``client_id`` is the sender's address.

    Raises:
        msgspec.DecodeError: the data is invalid, or is about another client than the topic.
    """
    presence = decode(_PRESENCE, data)
    sender = sender_of_presence(mqtt_topic)
    if sender != client_address(user_of(sender), presence.client_id):
        raise msgspec.ValidationError(f"presence of client {presence.client_id!r} from {sender!r}")
    return msgspec.structs.replace(presence, client_id=sender)
