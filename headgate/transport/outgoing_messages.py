"""The messages that a connection has accepted and not yet sent, bounded in bytes and number."""

from collections import deque
from typing import Protocol


class Sending(Protocol):
    """What the library of the protocol knows about one message."""

    def is_published(self) -> bool:
        """Whether it is sent; a retained one: whether the broker has confirmed it."""


class OutgoingMessages:
    """Messages passed to paho: ordinary ones until they are on the socket, retained ones until they are confirmed.

    Two queues, because ordinary messages can be written before an earlier retained one is
    confirmed.
    """

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self.clear()

    def clear(self) -> None:
        self._queues: tuple[deque[tuple[Sending, int]], ...] = (deque(), deque())
        self._messages = 0
        self._bytes = 0

    def has_capacity(self, size: int) -> bool:
        """Return whether one more message fits. A single message always fits."""
        self._discard_published()
        return not self._messages or (self._messages < self._max_messages and self._bytes + size <= self._max_bytes)

    def add(self, sending: Sending, size: int, retain: bool) -> None:
        self._queues[retain].append((sending, size))
        self._messages += 1
        self._bytes += size

    def _discard_published(self) -> None:
        for queue in self._queues:
            while queue and queue[0][0].is_published():
                self._bytes -= queue.popleft()[1]
                self._messages -= 1
