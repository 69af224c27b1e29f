"""An object store in memory, with the faults of a real one.

Several stores that share ``objects`` are several clients of one bucket. Everything happens on the loop's clock, so it
runs in virtual time; all chance comes from ``rng``.

The faults of a write, by name:

``unavailable``      StoreUnavailableError, nothing was written
``unknown_written``  OutcomeUnknownError, and it was written
``unknown_lost``     OutcomeUnknownError, and it was not

Reads, listings and deletions know ``unavailable`` only.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Literal

from headgate.errors import ObjectExistsError, ObjectMissingError, OutcomeUnknownError, StoreUnavailableError

Operation = Literal["create", "read", "names", "delete"]
Fault = Literal["unavailable", "unknown_written", "unknown_lost"]
FAULTS: tuple[Fault, ...] = ("unavailable", "unknown_written", "unknown_lost")


class FakeStore:
    """`headgate.storage.object_store.Store` in memory."""

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        objects: dict[str, bytes] | None = None,
        latency_seconds: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """``latency_seconds`` is the range that each call's duration is drawn from, half of it before the effect."""
        self.objects: dict[str, bytes] = {} if objects is None else objects
        self.latency_seconds = latency_seconds
        self.probabilities: dict[Fault, float] = dict.fromkeys(FAULTS, 0.0)
        self.calls: dict[Operation, int] = dict.fromkeys(("create", "read", "names", "delete"), 0)
        self._rng = rng or random.Random(0)
        self._next: dict[Operation, deque[Fault]] = {operation: deque() for operation in self.calls}
        self._out = False
        self._running = asyncio.Event()
        self._running.set()

    # --- what an operator or the weather does -------------------------------------------------------------------------

    def fail_next(self, fault: Fault, operation: Operation = "create", times: int = 1) -> None:
        """Let the next ``times`` calls of ``operation`` fail in the way ``fault`` says."""
        assert operation == "create" or fault == "unavailable", f"{operation} has no outcome to be unknown"
        self._next[operation].extend([fault] * times)

    def outage(self, out: bool = True) -> None:
        """Begin or end a time in which every call fails with StoreUnavailableError."""
        self._out = out

    def freeze(self) -> None:
        """Hold every call, those under way included, until `thaw`."""
        self._running.clear()

    def thaw(self) -> None:
        """Let held calls go on."""
        self._running.set()

    # --- Store --------------------------------------------------------------------------------------------------------

    async def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        fault = await self._begin("create", path)
        if fault == "unknown_lost":
            await self._travel()
            raise OutcomeUnknownError(f"cannot tell whether {path} was written")
        exists = path in self.objects
        if not exists:
            self.objects[path] = bytes(data)
        await self._travel()
        if fault == "unknown_written":
            raise OutcomeUnknownError(f"cannot tell whether {path} was written")
        if exists:
            raise ObjectExistsError(f"{path} exists already")

    async def read(self, path: str) -> bytes:
        """See `Store.read`."""
        await self._begin("read", path)
        data = self.objects.get(path)
        await self._travel()
        if data is None:
            raise ObjectMissingError(f"{path} does not exist")
        return data

    async def names(self, prefix: str, after: str = "") -> list[str]:
        """See `Store.names`."""
        await self._begin("names", prefix)
        folder = f"{prefix}/"
        inside = {path[len(folder) :] for path in self.objects if path.startswith(folder)}
        await self._travel()
        return sorted(name for name in inside if "/" not in name and name > after)

    async def folders(self, prefix: str) -> list[str]:
        """See `Store.folders`."""
        inside = {path[len(prefix) + 1 :] for path in await self.paths(prefix)}
        return sorted({path.split("/", 1)[0] for path in inside if "/" in path})

    async def paths(self, prefix: str) -> list[str]:
        """See `Store.paths`."""
        await self._begin("names", prefix)
        found = sorted(path for path in self.objects if path.startswith(f"{prefix}/"))
        await self._travel()
        return found

    async def delete(self, path: str) -> None:
        """See `Store.delete`."""
        await self._begin("delete", path)
        self.objects.pop(path, None)
        await self._travel()

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _begin(self, operation: Operation, path: str) -> Fault | None:
        """Travel to the store; raises StoreUnavailableError, or returns the fault that the write is to have."""
        self.calls[operation] += 1
        fault = self._draw(operation)
        await self._travel()
        if self._out or fault == "unavailable":
            raise StoreUnavailableError(f"cannot {operation} {path}: the store is out of reach")
        return fault

    def _draw(self, operation: Operation) -> Fault | None:
        if self._next[operation]:
            return self._next[operation].popleft()
        for fault in FAULTS if operation == "create" else FAULTS[:1]:
            if self.probabilities[fault] and self._rng.random() < self.probabilities[fault]:
                return fault
        return None

    async def _travel(self) -> None:
        """One way: half of the latency, or one turn of the loop."""
        await asyncio.sleep(self._rng.uniform(*self.latency_seconds) / 2)
        await self._running.wait()
