"""Messages as clients and leaders of later versions send them, within what docs/protocol.md permits.

A later version has fields that this one does not know, in every map: of the envelope, the body, and what is in it.
"""

from dataclasses import replace
from typing import Any, Final

import msgspec

from tests.support.fakes.broker import Message

UNKNOWN: Final = {"from_a_later_version": {"nested": [1, None, "text"]}}
"""A field that no version has."""


def later_version(message: Message) -> Message:
    """Return the message with unknown fields, if its payload is a map: a program may publish anything."""
    try:
        fields = msgspec.msgpack.decode(message.payload)
    except msgspec.DecodeError:
        return message
    if not isinstance(fields, dict):
        return message
    return replace(message, payload=msgspec.msgpack.encode(_with_unknown(fields)))


def _with_unknown(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_unknown(each) for each in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        known = {name: _with_unknown(each) for name, each in value.items()}
        # A message, or a part of one, has one of these fields. Others map names to values.
        fields = {"type", "request_id", "leader_epoch", "segment", "protocol", "shard", "client_id"} & known.keys()
        return known | UNKNOWN if fields else known
    return value
