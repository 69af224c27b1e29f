"""The bucket of a simulated cluster: it reports every write to the invariant checker, and its objects can be damaged.

A damaged object stays damaged until `repair`, for every client of the bucket: a bad sector, or a file that another program
has changed. A lost one is not there until then, and nothing may be written in its place. The checker knows the object
as it was written.
"""

from typing import Any

from tests.simulation.invariant_checker import InvariantChecker


class CheckedObjects(dict[str, bytes]):
    """Path → object."""

    def __init__(self, checker: InvariantChecker) -> None:
        super().__init__()
        self.ever_damaged: set[str] = set()
        """Paths of all objects that were damaged in this run."""
        self._checker = checker
        self._intact: dict[str, bytes] = {}
        """Path → what was written, of the objects that are damaged now."""

    def __setitem__(self, path: str, data: bytes) -> None:
        before = self.get(path, self._intact.get(path))
        super().__setitem__(path, data)
        self._checker.check_write(path, data, before=before)

    def damage(self, path: str, data: bytes) -> None:
        """Exchange an object by ``data``."""
        self._intact.setdefault(path, self[path])
        self.ever_damaged.add(path)
        super().__setitem__(path, data)

    def hide(self, path: str) -> None:
        """Let an object not be there until it is repaired."""
        self._intact.setdefault(path, self[path])
        self.ever_damaged.add(path)
        super().pop(path)

    def pop(self, path: str, *default: Any) -> Any:
        """Delete an object, which may be lost."""
        if path in self or path in self._intact:
            self._checker.check_deletion(path)
        return self.discard(path, *default)

    def discard(self, path: str, *default: Any) -> Any:
        """Let an object not be there, although no program deletes it."""
        self._intact.pop(path, None)
        return super().pop(path, *default)

    @property
    def damaged(self) -> list[str]:
        """Paths of the objects that are damaged now."""
        return list(self._intact)

    def repair(self) -> list[str]:
        """Restore all damaged objects, as from a backup, except those that were deleted; return their paths."""
        repaired = self.damaged
        for path in repaired:
            super().__setitem__(path, self._intact[path])
        self._intact.clear()
        return repaired
