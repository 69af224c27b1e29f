"""Decode a message on a request topic: a request, or what is wrong with it and its sender.

The topic names the sender, and the broker vouches for it. A request that names another client is
not read further, and replies go to the sender only. Pure. Accepts bytes from any source.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from headgate.protocol import codec
from headgate.protocol.request_fields import FIRST_PROTOCOL_VERSION, PROTOCOL_VERSION, Name, Natural
from headgate.protocol.requests import Request

MAX_SEARCHED_BYTES: Final = 64
"""How much of a request is searched for its id if it is not decoded."""
MalformedKind = Literal["too_large", "invalid", "not_msgpack", "protocol", "sender", "other_ledger"]


class Address(msgspec.Struct, frozen=True):
    """The part of the envelope that can be read although the request as a whole cannot.

    ``client_id``: as in the message; the sender's address once it was compared with that.
    """

    request_id: Natural
    client_id: Name
    protocol: int = FIRST_PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that is no valid request here. ``address`` None: its id is unknown, or another cluster replies."""

    kind: MalformedKind
    reason: str
    address: Address | None


_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_SENDER: Final = re.compile(f"{_NAME}/{_NAME}")
_REQUEST_ID: Final = msgspec.msgpack.encode("request_id")
_INTEGER_BYTES: Final = {b"\xcc": 1, b"\xcd": 2, b"\xce": 4, b"\xcf": 8}
"""First byte of an unsigned integer in msgpack → the number of bytes that follow it."""
_NATURAL: msgspec.msgpack.Decoder[int] = msgspec.msgpack.Decoder(Natural)
_ADDRESS: msgspec.msgpack.Decoder[Address] = msgspec.msgpack.Decoder(Address)


def read_request_id(payload: bytes, sender: str) -> Address | None:
    """Return where to send the refusal of a request that is not decoded, if it begins as an envelope of clients does.

    Costs the same for each payload: the request id is looked for in its first bytes only.
    """
    found = payload.find(_REQUEST_ID, 0, MAX_SEARCHED_BYTES)
    if found < 0 or not _SENDER.fullmatch(sender):
        return None
    first = found + len(_REQUEST_ID)
    number = payload[first : first + 1 + _INTEGER_BYTES.get(payload[first : first + 1], 0)]
    try:
        return Address(codec.decode(_NATURAL, number), sender)
    except msgspec.DecodeError:
        return None


def read_request(payload: bytes, sender: str, ledger_id: bytes) -> Request | Malformed:
    """Return the request in ``payload``, or what is wrong with it.

    ``sender``: the address that the message's topic names. It is the ``client_id`` of the result. A request for another
    ledger than ``ledger_id``, this cluster's, gets no reply: this cluster knows nothing of its outcome.
    """
    found = _read(payload, ledger_id)
    named = found.address if isinstance(found, Malformed) else found
    if named is None:
        return found
    if not _SENDER.fullmatch(sender):
        return Malformed("sender", f"the topic names no user and client: {sender!r}", None)
    if named.client_id != sender.partition("/")[2]:
        reason = f"the request names client {named.client_id!r}, but its topic names {sender!r}"
        return Malformed("sender", reason, Address(named.request_id, sender))
    if isinstance(found, Malformed):
        return replace(found, address=Address(named.request_id, sender))
    return msgspec.structs.replace(found, client_id=sender)


def _read(payload: bytes, ledger_id: bytes) -> Request | Malformed:
    if len(payload) > codec.MAX_MESSAGE_BYTES:
        reason = f"a message has {len(payload)} bytes; the limit is {codec.MAX_MESSAGE_BYTES}"
        return _malformed(payload, "too_large", reason)
    try:
        request = codec.decode_request(payload)
    except msgspec.ValidationError as error:
        return _malformed(payload, "invalid", f"not a request of protocol {PROTOCOL_VERSION}: {error}")
    except msgspec.DecodeError as error:
        return _malformed(payload, "not_msgpack", f"not msgpack: {error}")
    if request.protocol != PROTOCOL_VERSION:
        return _malformed(payload, "protocol", "")
    if request.ledger_id == ledger_id:
        return request
    if request.ledger_id:
        return Malformed("other_ledger", f"a request for the ledger {request.ledger_id.hex()}", None)
    return Malformed("invalid", "the request names no ledger", Address(request.request_id, request.client_id))


def _malformed(payload: bytes, kind: MalformedKind, reason: str) -> Malformed:
    try:
        address = codec.decode(_ADDRESS, payload)
    except msgspec.DecodeError:
        return Malformed(kind, reason, None)
    if address.protocol != PROTOCOL_VERSION:
        # Any other error may be an error in this leader's protocol version only.
        reason = f"a request of protocol {address.protocol}; this leader supports protocol {PROTOCOL_VERSION}: "
        reason += "install the version of headgate that the daemons run"
        return Malformed("protocol", reason, address)
    return Malformed(kind, reason, address)
