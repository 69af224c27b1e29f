"""Limits what the persistent sessions of one shard have read and not acknowledged, together. Pure.

All of them stop reading above the limit, and continue below half of it. Then each reads one message per turn of the
loop, so none waits for another one's queue at the broker.
"""

from typing import Final, Protocol

MESSAGE_BYTES: Final = 1024
"""What a message costs besides its payload, in memory."""


class Reader(Protocol):
    def pause_reading(self) -> None:
        """Read nothing more from the broker. Has no effect if it is paused."""

    def resume_reading(self) -> None:
        """Read again. Has no effect if it is not paused."""


class ReadingWindow:
    def __init__(self, limit_bytes: int) -> None:
        self.full = False
        self.readers: set[Reader] = set()
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def take(self, size_bytes: int) -> None:
        self._used_bytes += MESSAGE_BYTES + size_bytes
        if self._used_bytes > self._limit_bytes:
            self.full = True
            for reader in self.readers:
                reader.pause_reading()

    def give_back(self, size_bytes: int) -> None:
        self._used_bytes -= MESSAGE_BYTES + size_bytes
        if self.full and self._used_bytes <= self._limit_bytes // 2:
            self.full = False
            for reader in self.readers:
                reader.resume_reading()
