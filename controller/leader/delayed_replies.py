"""Delay the replies to users who have spent their rates, in order (KIP-124).

A user's replies leave in the order in which they became due, so that a producer sees its batches
committed in order. Replies to other users are not delayed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from metrics import events

MAX_DELAYED_REPLIES: Final = 10_000
"""Per user and shard. Beyond it, requests of the user are not read until some have left."""


class DelayedReplies:
    """The replies of one leader term that wait."""

    def __init__(self, shard: int, delay_seconds: Callable[[str], float], observer: events.Observer) -> None:
        """``delay_seconds``: user → how long a reply has to wait that is sent now. It falls only with time."""
        self._shard = shard
        self._delay_seconds = delay_seconds
        self._observer = observer
        self._waiting: dict[str, deque[tuple[float, Callable[[], None]]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._count = 0

    def full(self, user: str) -> bool:
        """Return whether no more replies to ``user`` may wait."""
        waiting = self._waiting.get(user)
        return waiting is not None and len(waiting) >= MAX_DELAYED_REPLIES

    def send(self, user: str, send: Callable[[], None]) -> None:
        """Call ``send`` when a reply to ``user`` may leave, after those that wait already."""
        seconds = self._delay_seconds(user)
        if seconds <= 0 and user not in self._waiting:
            send()
            return
        now = asyncio.get_running_loop().time()
        self._waiting.setdefault(user, deque()).append((now + seconds, send))
        if user not in self._timers:
            self._set_timer(user)
        self._observer.observe(events.ReplyDelayed(shard=self._shard))
        self._set_count(self._count + 1)

    def close(self) -> None:
        """Drop what waits: the next leader answers when clients repeat their requests."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
        self._set_count(0)

    def _set_timer(self, user: str) -> None:
        self._timers[user] = asyncio.get_running_loop().call_at(self._waiting[user][0][0], self._send_due, user)

    def _send_due(self, user: str) -> None:
        waiting, now = self._waiting[user], self._timers.pop(user).when()
        before = len(waiting)
        while waiting and waiting[0][0] <= now:
            waiting.popleft()[1]()
        self._set_count(self._count - before + len(waiting))
        if waiting:
            self._set_timer(user)
        else:
            del self._waiting[user]

    def _set_count(self, count: int) -> None:
        self._count = count
        self._observer.observe(events.DelayedRepliesChanged(shard=self._shard, replies=count))
