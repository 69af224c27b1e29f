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
        known = value.items()
        return {name: _with_unknown(each) for name, each in known} | (UNKNOWN if _is_struct(value) else {})
    return value


def _is_struct(fields: dict[str, Any]) -> bool:
    """Return whether a map is a message or a part of one; others map names to values, and have no fields."""
    return bool({"type", "request_id", "leader_epoch", "segment", "protocol", "shard", "client_id"} & fields.keys())
