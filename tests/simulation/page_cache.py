"""A ledger in a folder of one machine, whose writes and deletions are visible before they are durable.

`headgate.storage.local_writer` writes the data of an object durably, links it to its name, and makes the folder durable. In
between, every program of the machine sees the object, and a power failure may remove it. It is never torn. A deletion is not
made durable at all, so a deleted object may come back. The kernel makes everything durable after a while.

Changes of one folder become durable in their order, as with a journal; those of two folders independently, as with
btrfs. The checker gets an object when it is durable.
"""

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.checked_objects import CheckedObjects
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import Plan
from tests.support.fakes.object_store import FakeStore

WRITE_BACK_SECONDS: Final = 5.0
"""The interval in which ext4 makes everything durable."""


@dataclass(eq=False, frozen=True, slots=True)
class _Change:
    """A change of a folder that is not durable; ``data`` was written or, if ``deleted``, was there."""

    path: str
    data: bytes
    deleted: bool


class CachedObjects(CheckedObjects):
    """Path → object, as the programs of the machine see it."""

    def __init__(self, checker: InvariantChecker) -> None:
        super().__init__(checker)
        self._changes: list[_Change] = []
        """In their order."""
        self.changed = asyncio.Event()
        """Set by each write that is not durable yet."""
        self.sync_seconds = 0.0
        """How long it takes to make a folder durable, beside the delay of any operation."""

    def __setitem__(self, path: str, data: bytes) -> None:
        assert path not in self, f"{path} exists already"
        dict.__setitem__(self, path, data)
        self._record(_Change(path, data, deleted=False))

    def pop(self, path: str, *default: Any) -> Any:
        existed = path in self
        data = super().pop(path, *default)
        if existed:
            self._record(_Change(path, data, deleted=True))
        return data

    def sync(self, folder: str) -> None:
        """Make all changes of a folder durable."""
        self._make_durable([each for each in self._changes if _folder(each.path) == folder])

    def lose(self, rng: random.Random) -> list[str]:
        """Let the power fail: undo the last changes of each folder that are not durable, and return what was undone."""
        undone = []
        for folder in sorted({_folder(each.path) for each in self._changes}):
            inside = [each for each in self._changes if _folder(each.path) == folder]
            durable = rng.randint(0, len(inside) - 1)
            self._make_durable(inside[:durable])
            for change in reversed(inside[durable:]):
                self._changes.remove(change)
                if change.deleted:
                    dict.__setitem__(self, change.path, change.data)
                else:
                    self.discard(change.path)
                undone.append(f"{change.path} {'is back' if change.deleted else 'is lost'}")
        return undone

    def _record(self, change: _Change) -> None:
        self._changes.append(change)
        if not change.deleted:
            self.changed.set()
            self.changed = asyncio.Event()
        asyncio.get_running_loop().call_later(WRITE_BACK_SECONDS, self._write_back, change)

    def _write_back(self, change: _Change) -> None:
        if change in self._changes:
            self.sync(_folder(change.path))

    def _make_durable(self, changes: list[_Change]) -> None:
        for change in changes:
            self._changes.remove(change)
            if not change.deleted:
                self._checker.check_write(change.path, change.data, before=None)


class FolderStore(FakeStore):
    """A client of that folder."""

    objects: CachedObjects

    async def create(self, path: str, data: bytes) -> None:
        """See `Store.create`. What is cancelled, or fails, in between is visible and not durable."""
        await super().create(path, data)
        if self.objects.sync_seconds:
            await asyncio.sleep(self.objects.sync_seconds)
        self.objects.sync(_folder(path))

    async def make_durable(self, folder: str) -> None:
        await super().make_durable(folder)
        self.objects.sync(folder)


def objects_of(plan: Plan, checker: InvariantChecker) -> tuple[CheckedObjects, type[FakeStore]]:
    """Return the objects of a run, and the kind of their clients: a bucket, or a folder if the plan has a power failure."""
    if any(step.operation == "power_failure" for step in plan.steps):
        return CachedObjects(checker), FolderStore
    return CheckedObjects(checker), FakeStore


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
