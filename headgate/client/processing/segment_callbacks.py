"""Tell the program which segments it holds: `on_granted` before their first record, `on_revoked` when they go.

1. Each slice that `on_granted` was called with is one that `on_revoked` is called with, once.
2. One call runs at a time, in the order of the leader's messages.
3. A callback that raises ends the consumer. An `on_revoked` that takes too long is cancelled, and logged.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from headgate.client.consuming.record_feed import Spawn
from headgate.client.decisions.held_segments import HeldKey
from headgate.client.processing.calls import Call, awaitable
from headgate.errors import HeadgateError
from headgate.log.event_log import EventLogger
from headgate.model.hashing import SegmentSlice, slice_of
from headgate.protocol.replies import Grant

OnGranted = Callable[[list[SegmentSlice]], object]
"""(segments). A whole segment is its number, a part of one a `BucketRange`."""
OnRevoked = Callable[[list[SegmentSlice], float], object]
"""(segments, seconds left). 0.0: another consumer may read them already."""
SHORTEST_SECONDS: Final = 5.0
"""For `on_revoked`, however little time is left."""


class SegmentCallbacks:
    def __init__(
        self, on_granted: OnGranted | None, on_revoked: OnRevoked | None, spawn: Spawn, log: EventLogger
    ) -> None:
        self._on_granted = None if on_granted is None else awaitable(on_granted)
        self._on_revoked = None if on_revoked is None else awaitable(on_revoked)
        self._spawn = spawn
        self._log = log
        self._turn = asyncio.Lock()
        self.caller: asyncio.Task[Any] | None = None
        """The task that calls a callback now."""
        self._announced: dict[HeldKey, SegmentSlice] = {}

    def granted(self, grants: Iterable[Grant]) -> asyncio.Task[None] | None:
        """Call `on_granted`; return the task that ends when reading may begin. None: now."""
        slices = {
            (each.segment, each.generation): slice_of(each.segment, each.first_bucket, each.end_bucket)
            for each in grants
        }
        self._announced |= slices
        if not slices or self._on_granted is None:
            return None
        return self._spawn(self._call(self._on_granted, list(slices.values())), "on-granted")

    def revoked(self, keys: Iterable[HeldKey], seconds_left: float) -> asyncio.Task[None] | None:
        """Call `on_revoked`; return the task of the call. None: there is nothing to tell."""
        slices = [self._announced.pop(key) for key in keys if key in self._announced]
        return self._spawn(self._revoke(slices, seconds_left), "on-revoked") if slices and self._on_revoked else None

    async def _revoke(self, slices: list[SegmentSlice], seconds_left: float) -> None:
        assert self._on_revoked is not None, "only called if there is one"
        try:
            async with asyncio.timeout(max(seconds_left, SHORTEST_SECONDS)) as limit:
                await self._call(self._on_revoked, slices, max(seconds_left, 0.0))
        except TimeoutError:
            if not limit.expired():
                raise
            self._log.warning("segment.callback_late", segments=str(slices))

    async def _call(self, callback: Call, *args: object) -> None:
        async with self._turn:
            self.caller = asyncio.current_task()
            try:
                await callback(*args)
            except SystemExit as error:  # it would end the event loop before the consumer
                raise HeadgateError(f"{callback!r} raised {error!r}") from error
            finally:
                self.caller = None
