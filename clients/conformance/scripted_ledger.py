"""What a scripted leader stores: chunks of one topic with whatever offsets a case wants, and what producers have sent.

The conformance suite and the unit tests of the Python client have leaders of their own on top of it.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.objects import chunk_path
from headgate.model.entries import Placement
from headgate.model.headers import Headers
from headgate.model.layout import segment_hash
from headgate.protocol import codec
from headgate.protocol.replies import AnyReplyBody, Committed, ProducerIdentity, Rejected
from headgate.protocol.requests import OpenProducer, ProduceBatch, Record

_NAMES = "topic_id", "segment", "offset", "timestamp_ms", "key", "value"


class ScriptedLedger:
    def __init__(self, topic_id: int, save: Callable[[str, bytes], None]) -> None:
        """``save`` stores a chunk under its path."""
        self.topic_id = topic_id
        self.head = 0
        self.next_offset: dict[int, int] = defaultdict(int)
        """The next offset of each segment."""
        self.stored: list[bytes] = []
        """The values of all records, in order."""
        self._save = save

    def write(
        self,
        records: list[Record],
        headers: Mapping[int, Headers],
        *,
        segments: Sequence[int],
        segment: int | None = None,
        epoch: int = 1,
        term_id: int = 0,
    ) -> list[Placement]:
        """Write a chunk. Records go into the segment of their key, of ``segments``, or all into ``segment``."""
        builder, width = ChunkBuilder(), 0x10000 // len(segments)
        first, rows = dict(self.next_offset), builder.records
        for index, record in enumerate(records):
            own = segments[segment_hash(record.key) // width] if segment is None else segment
            values = self.topic_id, own, self.next_offset[own], record.timestamp_ms, record.key, record.value
            for name, value in zip(_NAMES, values, strict=True):
                getattr(rows, name).append(value)
            rows.headers.append(headers.get(index, ()))
            self.next_offset[own] += 1
            self.stored.append(record.value)
        self.head += 1
        at_ms = time.time_ns() // 1_000_000
        data = builder.encode(shard=0, number=self.head, leader_epoch=epoch, at_ms=at_ms, term_id=term_id)
        self._save(chunk_path(0, self.head), data)
        bounds = {own: (at * width, (at + 1) * width - 1) for at, own in enumerate(segments)}
        return [
            Placement(own, *bounds.get(own, (0, 0xFFFF)), first.get(own, 0), end - first.get(own, 0))
            for own, end in self.next_offset.items()
            if end > first.get(own, 0)
        ]


class Identity:
    def __init__(self, epoch: int, token: str, previous: int | None) -> None:
        self.epoch, self.token, self.previous = epoch, token, previous
        self.batches: list[tuple[bytes, Committed]] = []
        """Content and answer, by sequence."""


class ScriptedProducers:
    """Opens identities and judges batches as the verdict table of docs/protocol.md says."""

    def __init__(self, store: Callable[[ProduceBatch], Committed], first_id: int = 1) -> None:
        """``store`` stores an accepted batch. Producers get the ids from ``first_id`` on."""
        self.known: dict[int, Identity] = {}
        self.broken: list[str] = []
        """Rules that a client broke."""
        self._store, self._first_id = store, first_id

    def open(self, body: OpenProducer) -> AnyReplyBody:
        known = self.known.get(body.producer_id or 0)
        if body.producer_id is not None and known is None and not body.accept_new:
            return Rejected(verdict="forgotten", reason="unknown producer")
        number = body.producer_id if known and body.producer_id else self._first_id + len(self.known)
        if known is None:
            repeated = [each for each, identity in self.known.items() if identity.token == body.token]
            number = repeated[0] if repeated else number
            known = self.known.get(number)
        if known is None or known.token != body.token:
            previous = None if known is None else len(known.batches)
            self.known[number] = Identity(0 if known is None else known.epoch + 1, body.token, previous)
        identity = self.known[number]
        return ProducerIdentity(
            producer_id=number, producer_epoch=identity.epoch, previous_next_sequence=identity.previous
        )

    def produce(self, batch: ProduceBatch) -> Committed | Rejected:
        identity = self.known.get(batch.producer_id or 0)
        sequence = batch.sequence or 0
        if identity is None:
            return Rejected(verdict="forgotten", reason="unknown producer")
        if batch.producer_epoch < identity.epoch:
            return Rejected(verdict="fenced", reason="an older epoch")
        if batch.producer_epoch > identity.epoch or sequence > len(identity.batches):
            return Rejected(verdict="out_of_order", reason=f"sequence {len(identity.batches)} is next")
        content = codec.encode(batch)
        if sequence < len(identity.batches):
            if identity.batches[sequence][0] != content:
                self.broken.append(f"sequence {sequence} was sent with other content")
            return msgspec.structs.replace(identity.batches[sequence][1], duplicate=True)
        answer = self._store(batch)
        identity.batches.append((content, answer))
        return answer
