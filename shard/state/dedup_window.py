"""The deduplication window: the last finished batches of one producer. Pure.

Each batch is stored as a msgpack array, 85 bytes instead of 500: a shard may have 100,000 producers,
and most batches are never read. A window from a snapshot stays one string of bytes until it is used: a
new leader restores a million of them, and most of their producers are idle. A window without batches
is a string that all share, because an empty deque takes 700 bytes.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from headgate.model import entries as e

WINDOW: Final = 128
"""Finished batches stored per producer, and the limit for batches in flight (Redpanda: five)."""


class FinishedBatch(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    chunk: int
    topic_id: int
    """The topic that stores it, which may have been deleted since."""
    digest: bytes
    """`headgate.protocol.codec` of its content."""
    placements: list[e.Placement]


class FinishedBatches:
    """The last `WINDOW` batches, newest last. Items are copies: changing one does not change the window."""

    __slots__ = ("_restored", "_unpacked")

    def __init__(self, batches: Iterable[FinishedBatch] = (), *, packed: bytes | None = None) -> None:
        """``packed``: what `pack` returned, instead of ``batches``."""
        self._restored = packed or _NO_BATCHES
        self._unpacked: deque[bytes] | None = None
        for batch in batches:
            self.append(batch)

    def pack(self) -> bytes:
        return self._restored if self._unpacked is None else _ENCODER.encode(list(self._unpacked))

    @property
    def _packed(self) -> deque[bytes]:
        if self._unpacked is None:
            self._unpacked = deque(_WINDOW_DECODER.decode(self._restored), maxlen=WINDOW)
            self._restored = _NO_BATCHES
        return self._unpacked

    def append(self, batch: FinishedBatch) -> None:
        """Add the newest batch, and drop the oldest if the window is full."""
        self._packed.append(_ENCODER.encode(batch))

    @property
    def oldest_chunk(self) -> int:
        """The chunk of the oldest batch; the window must not be empty. Read for each batch of a full window."""
        return _BEGINNING_DECODER.decode(self._packed[0]).chunk

    def clear(self) -> None:
        self._restored, self._unpacked = _NO_BATCHES, None

    def __len__(self) -> int:
        return 0 if self._unpacked is None and self._restored == _NO_BATCHES else len(self._packed)

    def __getitem__(self, index: int) -> FinishedBatch:
        return _DECODER.decode(self._packed[index])

    def __iter__(self) -> Iterator[FinishedBatch]:
        return map(_DECODER.decode, self._packed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FinishedBatches) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"FinishedBatches({list(self)})"


class _Beginning(msgspec.Struct, array_like=True):
    """The part of a batch that `FinishedBatches.oldest_chunk` reads."""

    sequence: int
    chunk: int


_BEGINNING_DECODER: Final = msgspec.msgpack.Decoder(_Beginning)
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(FinishedBatch)
_WINDOW_DECODER: Final = msgspec.msgpack.Decoder(list[bytes])
_NO_BATCHES: Final = _ENCODER.encode([])
