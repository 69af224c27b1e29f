"""Send a reply or push that is too large for one message in parts, and put the parts together. Pure.

Brokers close the connection of a client that sends a packet above their limit. A leader sends the
parts of one message without another in between, so a receiver keeps one incomplete message per
leader. If a part is lost, the whole message is: the client repeats its request.
"""

from collections.abc import Iterator
from typing import Any, Final

from headgate.protocol.replies import MessagePart

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
