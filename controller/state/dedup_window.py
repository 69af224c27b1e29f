"""The last finished batches of one producer, kept for whoever sends one again.

As many as a producer may have in flight (Redpanda keeps five). Most are never asked for, and a shard may know a hundred
thousand producers: each is kept as msgpack, in less than half of what it takes as objects (140 bytes against 340 where
it fell into one segment). Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headgate.model import entries as e

WINDOW: Final = 128
"""Finished batches remembered per producer, and the most that it may have in flight."""


@dataclass(slots=True)
class FinishedBatch:
    """One accepted batch."""

    sequence: int
    count: int
    chunk: int
    placements: list[e.Placement] | None
    rejected: list[int] = field(default_factory=list)
    """Acknowledgements: segments of those that did not count."""


class FinishedBatches:
    """The last `WINDOW` of them, the newest last; a change to one that was taken out changes nothing in here."""

    __slots__ = ("_packed",)

    def __init__(self, batches: Iterable[FinishedBatch] = ()) -> None:
        self._packed = deque(map(_ENCODER.encode, batches), maxlen=WINDOW)

    def append(self, batch: FinishedBatch) -> None:
        """Add the newest; the oldest goes when there are too many."""
        self._packed.append(_ENCODER.encode(batch))

    @property
    def oldest_chunk(self) -> int:
        """The chunk of the oldest one; there has to be one. Asked for each batch of a producer with a full window."""
        return _CHUNK_DECODER.decode(self._packed[0]).chunk

    def clear(self) -> None:
        """Forget all."""
        self._packed.clear()

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: int) -> FinishedBatch:
        return _DECODER.decode(self._packed[index])

    def __iter__(self) -> Iterator[FinishedBatch]:
        return map(_DECODER.decode, self._packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FinishedBatches) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"FinishedBatches({list(self)})"


class _Chunk(msgspec.Struct):
    """What `FinishedBatches.oldest_chunk` needs of one."""

    chunk: int


_CHUNK_DECODER: Final = msgspec.msgpack.Decoder(_Chunk)
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(FinishedBatch)
