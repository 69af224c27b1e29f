"""The producers of a shard: their identities, names, positions and finished batches. Part of the fold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from controller.state.dedup_window import FinishedBatch, FinishedBatches
from headgate.model import entries as e

MAX_EARLIER_TOKENS = 8
"""Earlier open requests stored per producer, so that a delayed copy of one does not open the producer again."""


@dataclass(slots=True)
class ProducerState:
    """The identity of one producer, and the end of its history."""

    producer_id: int
    producer_epoch: int
    name: str | None
    token: str
    next_sequence: int = 0
    finished: FinishedBatches = field(default_factory=FinishedBatches)
    source_position: bytes | None = None
    earlier_tokens: tuple[str, ...] = ()
    """Tokens of earlier incarnations, newest last."""
    last_chunk: int = 0
    last_at_ms: int = 0


class Producers(Mapping[int, ProducerState]):
    """Producer id → producer, least recently used first."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, ProducerState] = OrderedDict()
        self.names: dict[str, int] = {}

    def __getitem__(self, producer_id: int) -> ProducerState:
        return self._by_id[producer_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def restore(self, producer: ProducerState) -> None:
        """Add ``producer`` of a snapshot as the most recently used one."""
        self._by_id[producer.producer_id] = producer

    def open(self, entry: e.ProducerOpened, chunk: int, at_ms: int) -> None:
        before = self._by_id.get(entry.producer_id)
        if entry.name is not None:
            previous = self.names.get(entry.name)
            if previous is not None and previous != entry.producer_id:
                # The old id ran out of epochs. Its history belongs to the name, so it moves to the new id.
                before = self._by_id.pop(previous, before)
            self.names[entry.name] = entry.producer_id
        self._by_id[entry.producer_id] = ProducerState(
            entry.producer_id,
            entry.producer_epoch,
            entry.name if before is None else entry.name or before.name,
            entry.token,
            source_position=None if before is None else before.source_position,
            earlier_tokens=() if before is None else (*before.earlier_tokens, before.token)[-MAX_EARLIER_TOKENS:],
            last_chunk=chunk,
            last_at_ms=at_ms,
        )
        self._by_id.move_to_end(entry.producer_id)

    def finish_batch(
        self, producer_id: int, producer_epoch: int, batch: FinishedBatch, source_position: bytes | None, at_ms: int
    ) -> None:
        """Add the batch that ``batch.chunk`` stores, of ledger time ``at_ms``."""
        producer = self._by_id[producer_id]
        if producer_epoch > producer.producer_epoch:
            # The client raised its own epoch after a gap: a new incarnation with its own sequence.
            producer.producer_epoch, producer.next_sequence = producer_epoch, 0
            producer.finished.clear()
        assert batch.sequence == producer.next_sequence, f"sequence {batch.sequence} is not the next one"
        producer.next_sequence = batch.sequence + 1
        producer.finished.append(batch)
        producer.last_chunk, producer.last_at_ms = batch.chunk, at_ms
        if source_position is not None:
            producer.source_position = source_position
        self._by_id.move_to_end(producer_id)

    def remove(self, producer_id: int) -> None:
        producer = self._by_id.pop(producer_id, None)
        if producer is not None and producer.name is not None:
            del self.names[producer.name]
