"""Where a query is in a topic, and where a micro-batch ends. Pure.

1. A record of a child is in a batch only if this batch, or an earlier one, completes every ancestor: it is sealed, and
   read to its end. So all records of a key are in the order of their batches, and, within a batch, in the order of
   ``(segment, offset)``, because ids rise from parents to children.
2. The ends that it chooses from were read at one moment of a ledger whose records are in order. So each batch is a
   consistent cut, whatever its limit is.
3. The segments whose ancestors are complete share the limit in proportion to what waits in them. Then come their
   children, as far as it reaches: generations without records cost no batch.
4. A batch has at least one record if any waits, and otherwise its end is its start.
5. An ancestor that is not in the layout was pruned, and is complete (`StreamPosition.lost` finds those that are not).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from headgate.model.layout import SegmentState
from headgate.model.positions import PositionToken
from headgate.reading.topic_position import Snapshot, TopicPosition
from headgate.views.topics import SegmentInfo


class StreamPosition(TopicPosition, frozen=True, kw_only=True):
    """The offset of Spark's checkpoints. It is JSON, which people can read there."""

    first_chunk: int = 1
    """No record after the position is in an earlier chunk."""

    @classmethod
    def at(cls, now: Snapshot, reached: Mapping[int, int], first_chunk: int = 1) -> Self:
        """Return ``reached``, segment → next offset of every segment, as a position of the moment."""
        first_chunk = now.counted + 1 if reached == now.ends else first_chunk
        return cls(**msgspec.structs.asdict(now.position(reached)), first_chunk=first_chunk)

    @classmethod
    def of_token(cls, token: PositionToken) -> list[Self]:
        """Return it for each point of its history. An older ledger that was put back may have the newest one only."""
        position = cls(
            topic=token.topic,
            topic_id=token.topic_id,
            ledger_id=token.ledger_id,
            newest=max(token.positions, default=-1),
            offsets={segment: token.positions[segment] for segment in token.held},
        )
        return [replace(position, chunk=chunk, term_id=term_id) for chunk, term_id in token.history or [(0, 0)]]

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        return msgspec.convert(value, cls, str_keys=True, strict=False)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types. Equal positions give equal texts."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return found


def batch_end(
    positions: Mapping[int, int], segments: Sequence[SegmentInfo], limit: int | None = None, *, in_bytes: bool = False
) -> dict[int, int]:
    """Return segment → next offset after the batch, for every segment of the layout.

    ``positions``: segment → offset at which the batch begins, default 0. ``limit``: the most records; with
    ``in_bytes`` the most bytes, at the average size of a segment's records.
    """
    known = {each.segment: each for each in segments}
    end = {segment: positions.get(segment, 0) for segment in sorted(known)}
    waiting_for = {each.segment: sum(parent in known for parent in each.parents) for each in segments}
    ready = [segment for segment in end if not waiting_for[segment]]
    left = limit
    while ready:
        # An average record, rounded up.
        sizes = {each: max(1, -(-known[each].size_bytes // max(1, known[each].next_offset))) for each in ready}
        costs = sizes if in_bytes else dict.fromkeys(ready, 1)
        wanted = {segment: known[segment].next_offset - end[segment] for segment in ready}
        taken = wanted if left is None else _shares(wanted, costs, left, at_least_one=left == limit)
        for segment, count in taken.items():
            end[segment] += count
        if left is not None:
            left = max(0, left - sum(count * costs[segment] for segment, count in taken.items()))
        if taken != wanted:
            break
        following = []
        for child in (child for segment in ready for child in known[segment].children):
            if child in waiting_for:
                waiting_for[child] -= 1
                following += [child] * (not waiting_for[child])
        ready = sorted(following)
    return end


def is_complete(segment: SegmentInfo, positions: Mapping[int, int]) -> bool:
    """Return whether a segment is sealed, and read to its end."""
    return segment.state is not SegmentState.ACTIVE and positions.get(segment.segment, 0) >= segment.next_offset


def readable(positions: Mapping[int, int], segments: Iterable[SegmentInfo]) -> dict[int, int]:
    """Return the positions of those segments that a batch may read: all of their ancestors are complete."""
    found, complete = {}, set()
    present = {each.segment: each for each in segments}
    for segment, known in sorted(present.items()):
        if all(parent in complete or parent not in present for parent in known.parents):
            found[segment] = positions.get(segment, 0)
            complete |= {segment} if is_complete(known, positions) else set()
    return found


def _shares(wanted: dict[int, int], costs: dict[int, int], left: int, *, at_least_one: bool) -> dict[int, int]:
    """Return how many of the ``wanted`` records of each segment ``left`` allows."""
    total = sum(count * costs[segment] for segment, count in wanted.items())
    if total <= left:
        return wanted
    taken = {segment: left * count // total for segment, count in wanted.items()}
    if at_least_one and not any(taken.values()):
        taken[next(segment for segment, count in wanted.items() if count)] = 1
    return taken
