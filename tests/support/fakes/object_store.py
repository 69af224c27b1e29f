"""An object store in memory, with the faults of a real one.

Stores that share ``objects`` are clients of one bucket. All delays use the loop's clock, so it runs in virtual time. All
random numbers come from ``rng``.

The faults of a write:

``unavailable``      StoreUnavailableError, nothing was written
``unknown_written``  OutcomeUnknownError, and the object was written
``unknown_lost``     OutcomeUnknownError, and it was not written
``repeated``         the client repeats the request without having seen the first answer: ObjectExistsError

All other operations have only ``unavailable``. `damaged_reads` is the disk or the network of one client: the
object itself stays intact.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeVar, get_args

from headgate import errors
from headgate.storage.object_store import check_size

Operation = Literal["create", "read", "names", "delete", "make_durable"]
Fault = Literal["unavailable", "unknown_written", "unknown_lost", "repeated"]
FoundT = TypeVar("FoundT")
FAULTS: tuple[Fault, ...] = ("unavailable", "unknown_written", "unknown_lost", "repeated")
_POSSIBLE: dict[Operation, tuple[Fault, ...]] = dict.fromkeys(get_args(Operation), FAULTS[:1]) | {"create": FAULTS}


class FakeStore:
    """`headgate.storage.object_store.Store` in memory."""

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        objects: dict[str, bytes] | None = None,
        latency_seconds: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """``latency_seconds``: range of the random duration of each call.

        A write has its effect after half of it. A read finds what there is when it is called.
        """
        self.objects: dict[str, bytes] = {} if objects is None else objects
        self.latency_seconds = latency_seconds
        self.probabilities: dict[Fault, float] = dict.fromkeys(FAULTS, 0.0)
        self.refuses_writes = False
        """Whether every write is refused, and everything else works."""
        self.endless: set[str] = set()
        """Names under which there is a link to a device instead of an object."""
        self.late_listings = 0.0
        """Probability that a listing does not show one of the three newest objects yet."""
        self._listing_rng = random.Random(1)
        self.damaged_reads = 0.0
        """Probability that a read returns data with one flipped bit."""
        self.calls: dict[Operation, int] = dict.fromkeys(get_args(Operation), 0)
        self._rng = rng or random.Random(0)
        self._next: dict[Operation, deque[Fault]] = {operation: deque() for operation in self.calls}
        self._out = False
        self._running, self.listings = asyncio.Event(), asyncio.Event()
        """The store answers while it is running, and listings while both are set."""
        self.thaw()
        self.listings.set()

    # Faults

    def fail_next(self, fault: Fault, operation: Operation = "create", times: int = 1) -> None:
        """Let the next ``times`` calls of ``operation`` fail with ``fault``."""
        assert operation == "create" or fault == "unavailable", f"the outcome of {operation} cannot be unknown"
        self._next[operation].extend([fault] * times)

    def outage(self, out: bool = True) -> None:
        """Start or end an outage, in which every call raises StoreUnavailableError."""
        self._out = out

    def freeze(self) -> None:
        """Block every call, including running ones, until `thaw`."""
        self._running.clear()

    def thaw(self) -> None:
        """Continue blocked calls."""
        self._running.set()

    # Store

    async def create(self, path: str, data: bytes) -> None:
        check_size(path, len(data))
        fault = await self._begin("create", path)
        if fault == "unknown_lost":
            await self._delay()
            raise errors.OutcomeUnknownError(f"unknown whether {path} was written")
        exists = path in self.objects or path in self.endless
        if not exists:
            self.objects[path] = bytes(data)
        await self._delay()
        if fault == "unknown_written":
            raise errors.OutcomeUnknownError(f"unknown whether {path} was written")
        if exists or fault == "repeated":
            raise errors.ObjectExistsError(f"{path} already exists")

    async def read(self, path: str) -> bytes:
        data = await self._answer("read", path, lambda: self.objects.get(path))
        if path in self.endless:
            raise errors.ForeignObjectError(f"{path} is not a regular file: remove it")
        if data is None:
            raise errors.ObjectMissingError(f"{path} does not exist")
        check_size(path, len(data))
        if data and self.damaged_reads and self._rng.random() < self.damaged_reads:
            at = self._rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << self._rng.randrange(8)]) + data[at + 1 :]
        return data

    async def names(self, prefix: str, after: str = "") -> list[str]:
        folder = f"{prefix}/"
        first = len(folder)
        names = await self._answer(
            "names", prefix, lambda: [path[first:] for path in self._listed() if path.startswith(folder)]
        )
        return sorted(name for name in names if name > after and "/" not in name)

    async def folders(self, prefix: str) -> list[str]:
        inside = {path[len(prefix) + 1 :] for path in await self.paths(prefix)}
        return sorted({path.split("/", 1)[0] for path in inside if "/" in path})

    async def paths(self, prefix: str) -> list[str]:
        folder = f"{prefix}/"
        return await self._answer(
            "names", prefix, lambda: sorted(path for path in self._listed() if path.startswith(folder))
        )

    async def delete(self, path: str) -> None:
        await self._begin("delete", path)
        self.objects.pop(path, None)
        await self._delay()

    async def make_durable(self, folder: str) -> None:
        await self._begin("make_durable", folder)
        await self._delay()

    async def _begin(self, operation: Operation, path: str) -> Fault | None:
        """Delay the request; raise StoreUnavailableError, or return the fault of the write."""
        self.calls[operation] += 1
        fault = self._draw(operation)
        await self._delay()
        if self._out or fault == "unavailable" or (self.refuses_writes and operation == "create"):
            raise _unavailable(operation, path)
        return fault

    async def _answer(self, operation: Operation, path: str, find: Callable[[], FoundT]) -> FoundT:
        """Return what ``find`` finds when the request is sent: it may have changed when the answer arrives."""
        self.calls[operation] += 1
        fault = self._draw(operation)
        if not self._running.is_set():
            await self._running.wait()
        if operation == "names" and not self.listings.is_set():
            await self.listings.wait()
        failed = self._out or fault is not None
        found = find()
        await asyncio.sleep(self._rng.uniform(*self.latency_seconds))
        if not self._running.is_set():
            await self._running.wait()
        if failed:
            raise _unavailable(operation, path)
        return found

    def _listed(self) -> list[str]:
        """Return the paths that a listing shows."""
        found = list(self.objects)
        if not self.late_listings:
            return found
        return found[:-3] + [path for path in found[-3:] if self._listing_rng.random() >= self.late_listings]

    def _draw(self, operation: Operation) -> Fault | None:
        if self._next[operation]:
            return self._next[operation].popleft()
        for fault in _POSSIBLE[operation]:
            if self.probabilities[fault] and self._rng.random() < self.probabilities[fault]:
                return fault
        return None

    async def _delay(self) -> None:
        """Delay one direction, which takes half of the latency: at least one turn of the loop."""
        await asyncio.sleep(self._rng.uniform(*self.latency_seconds) / 2)
        if not self._running.is_set():
            await self._running.wait()


def _unavailable(operation: Operation, path: str) -> errors.StoreUnavailableError:
    return errors.StoreUnavailableError(f"cannot {operation} {path}: the store is unreachable")
