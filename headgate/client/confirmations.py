"""Sends a consumer's confirmations of revocations, as many as there are in one request.

1. One request is under way at a time. What is finished meanwhile goes with the next one, so nothing waits on purpose.
2. A request that fails is not sent again: the leader ends a revocation itself after its time limit, and repeats it
   with a heartbeat before.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from headgate.errors import NoLeaderError, RequestRejectedError
from headgate.log.event_log import EventLogger
from headgate.protocol import messages as m

Confirm = Callable[[list[tuple[int, int]]], Awaitable[None]]
"""Confirms that (segment, generation) pairs are released; see `headgate.client.consuming.consumer_requests`."""


class Confirmations:
    """The confirmations of one consumer."""

    def __init__(self, confirm: Confirm, on_sent: Callable[[m.Revocation], None], log: EventLogger) -> None:
        """``on_sent`` gets each revocation once its request has a reply, or has failed."""
        self._confirm = confirm
        self._on_sent = on_sent
        self._log = log
        self._waiting: deque[m.Revocation] = deque()
        self._added = asyncio.Event()

    def add(self, revocation: m.Revocation) -> None:
        """Confirm that the consumer has stopped reading the segment of ``revocation``. Does not wait."""
        self._waiting.append(revocation)
        self._added.set()

    async def run(self) -> None:
        """Send what is added, until cancelled."""
        while True:
            await self._added.wait()
            revocations = list(islice(self._waiting, m.MAX_CONFIRMED_SEGMENTS))
            for _ in revocations:
                self._waiting.popleft()
            if not self._waiting:
                self._added.clear()
            try:
                await self._confirm([(each.segment, each.generation) for each in revocations])
            except (NoLeaderError, RequestRejectedError) as error:
                segments = [each.segment for each in revocations]
                self._log.warning("segment.confirm_failed", segments=segments, reason=str(error))
            for each in revocations:
                self._on_sent(each)
