"""Encode messages as msgpack, and decode them; cut what is too large into parts and pages; the digest of a batch.

Decoders accept any bytes: whatever is wrong with them surfaces as `msgspec.DecodeError`.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from headgate.protocol.announcements import Presence
from headgate.protocol.mqtt_topics import client_address, sender_of_presence, user_of
from headgate.protocol.replies import AnyReply, MessagePart
from headgate.protocol.requests import ProduceBatch, Request

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


# Parts of a message, and pages of a list

PART_BYTES: Final = 512 * 1024
"""A larger message is sent in parts of this size. Common brokers accept packets of 1 MB and more."""
MAX_PARTS: Final = 64
MAX_REPLY_BYTES: Final = PART_BYTES * MAX_PARTS
"""Limit for one reply or push in all its parts; half of what a transport lets wait."""


def split_message(payload: bytes, *, shard: int, number: int, **term: Any) -> Iterator[MessagePart]:
    """Yield the parts of an encoded message; ``number`` is different for each message of the ``term``."""
    assert len(payload) <= MAX_REPLY_BYTES, f"a message of {len(payload)} bytes"
    starts = range(0, len(payload), PART_BYTES)
    for index, start in enumerate(starts):
        content = payload[start : start + PART_BYTES]
        yield MessagePart(shard=shard, number=number, index=index, count=len(starts), content=content, **term)


class PartCollector:
    """Puts the parts of a reply or push together that was too large for one message.

    Brokers close the connection of a client that sends a packet above their limit. A leader sends the
    parts of one message without another in between, so a receiver keeps one incomplete message per
    leader. If a part is lost, the whole message is: the client repeats its request.
    """

    def __init__(self) -> None:
        self._incomplete: dict[tuple[bytes, int], dict[int, MessagePart]] = {}
        """(ledger, shard) → parts of its newest message, by index. Another ledger may be at an earlier epoch."""

    def add(self, part: MessagePart) -> bytes | None:
        """Return the message that ``part`` completes. A part of an earlier message, or an invalid one, is ignored."""
        if not 0 <= part.index < part.count <= MAX_PARTS or len(part.content) > PART_BYTES:
            return None
        parts = self._incomplete.setdefault((part.ledger_id, part.shard), {})
        known = next(iter(parts.values()), part)
        if (part.leader_epoch, part.number) < (known.leader_epoch, known.number):
            return None
        if (part.leader_epoch, part.number, part.count) != (known.leader_epoch, known.number, known.count):
            parts.clear()
        parts[part.index] = part
        if len(parts) < part.count:
            return None
        del self._incomplete[part.ledger_id, part.shard]
        return b"".join(parts[index].content for index in range(part.count))


PAGE_BYTES: Final = 256 * 1024
"""Encoded items of one page. A client that lists everything needs one request per page."""

ItemT = TypeVar("ItemT", bound=msgspec.Struct)


def follows(after: str | None, *names: str) -> bool:
    """Return whether the item with ``names`` is behind the cursor ``after``; None is the start of the list."""
    return after is None or names > tuple(after.split("/"))


class Page(Generic[ItemT]):
    """The first items of a list, as many as fit. It is full with the item that does not fit, which it leaves out.

    So neither a reply nor the work for it grows with the shard. An item that is larger than a page is a page of its
    own. A cursor joins the names of an item with slashes, which names do not contain.
    """

    def __init__(self, page_bytes: int = PAGE_BYTES) -> None:
        self._page_bytes = page_bytes
        self._size = 0
        self._last: tuple[str, ...] = ()
        self.items: list[ItemT] = []
        self.is_full = False

    def add(self, names: tuple[str, ...], item: ItemT) -> bool:
        """Return whether the page is full."""
        self._size += len(encode(item))
        if self.items and self._size > self._page_bytes:
            self.is_full = True
        else:
            self.items.append(item)
            self._last = names
        return self.is_full

    @property
    def following(self) -> str | None:
        return "/".join(self._last) if self.is_full else None


def cut_page(
    items: Iterable[tuple[tuple[str, ...], ItemT]], page_bytes: int = PAGE_BYTES
) -> tuple[list[ItemT], str | None]:
    """Return the first items, and the cursor of the next page; None: there is none.

    ``items``: (names, item) in ascending order of the names. A generator builds only the items of
    this page and one more.
    """
    page: Page[ItemT] = Page(page_bytes)
    for names, item in items:
        if page.add(names, item):
            break
    return page.items, page.following


DIGEST_BYTES: Final = 16
"""To make a batch that passes for the stored one of another producer, an attacker needs a second preimage, 2**128
attempts. Half the size would leave 2**64, and save a tenth of the deduplication window."""


def batch_digest(batch: ProduceBatch) -> bytes:
    """Return the digest of ``batch``, `DIGEST_BYTES` long, by which a leader recognizes a repeated batch.

    It covers what a batch means: its topic, keys, values, headers, timestamps and source position. It does not cover
    how the request was encoded, nor the fields by which the batch is found (producer id, epoch, sequence).
    docs/ledger.md describes the bytes that are hashed. Takes 60 µs for 64 KB in records of 100 bytes.
    """
    content = batch.topic, batch.source_position, batch.records, batch.headers
    return hashlib.sha256(encode(content)).digest()[:DIGEST_BYTES]
