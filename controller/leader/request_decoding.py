"""Decode a message on the request topic: a request, or what is wrong with it and its sender.

Pure. Accepts bytes from any source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from headgate.protocol import messages as m

MalformedKind = Literal["too_large", "invalid", "not_msgpack", "protocol"]


class Address(msgspec.Struct, frozen=True):
    """The part of the envelope that can be read although the request as a whole cannot."""

    request_id: m.Natural
    client_id: m.Name
    protocol: int = m.PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that is not a valid request. ``address`` None: the client that sent it is unknown."""

    kind: MalformedKind
    reason: str
    address: Address | None


_ADDRESS: msgspec.msgpack.Decoder[Address] = msgspec.msgpack.Decoder(Address)


def read_request(payload: bytes) -> m.Request | Malformed:
    """Return the request in ``payload``, or what is wrong with it."""
    if len(payload) > m.MAX_MESSAGE_BYTES:
        reason = f"a message has {len(payload)} bytes; the limit is {m.MAX_MESSAGE_BYTES}"
        return _malformed(payload, "too_large", reason)
    try:
        request = m.decode_request(payload)
    except msgspec.ValidationError as error:
        return _malformed(payload, "invalid", f"not a request of protocol {m.PROTOCOL_VERSION}: {error}")
    except msgspec.DecodeError as error:
        return _malformed(payload, "not_msgpack", f"not msgpack: {error}")
    if request.protocol != m.PROTOCOL_VERSION:
        return _malformed(payload, "protocol", "")
    return request


def _malformed(payload: bytes, kind: MalformedKind, reason: str) -> Malformed:
    try:
        address = m.decode(_ADDRESS, payload)
    except msgspec.DecodeError:
        return Malformed(kind, reason, None)
    if address.protocol != m.PROTOCOL_VERSION:
        # Any other error may be an error in this leader's protocol version only.
        reason = f"a request of protocol {address.protocol}; this leader supports protocol {m.PROTOCOL_VERSION}"
        return Malformed("protocol", reason, address)
    return Malformed(kind, reason, address)
