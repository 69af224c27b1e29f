"""Create objects in a local folder: complete, durable, and only under a free name.

An object is written to an unnamed file, fsynced, then linked to its name: atomic, and never a
partial object, even after a power failure. File systems without unnamed files get a temporary name.

Once a folder has an object, the file of the next one is opened ahead: some file systems take as long for that as for
the write. An unused one has no name, and ends with the process.

A root that had objects, and is empty or missing, is not created again, nor is the folder of a shard: its disk has been
unmounted. What a leader would store there, and acknowledge, would be gone once the disk is back. The root below a disk
need not be empty: it may have a note that no disk is mounted, or the try of a write.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from headgate.errors import NotDurableError, ObjectExistsError, StoreUnavailableError

THREADS: Final = 8
"""Maximum of concurrent writes: a disk benefits from about this many concurrent fsyncs."""
SHARD_DEPTH: Final = 2
"""Folders up to ``compacted/shard=0003`` are kept when empty: a writer may be about to use them."""
MAX_FILES_AHEAD: Final = 64
"""One per folder: more than the shards that a daemon should lead. The oldest one is closed for another folder."""


class LocalWriter:
    def __init__(self, root: Path) -> None:
        """``root`` is absolute; the first object creates it."""
        self._root = root
        # In the loop's own pool a commit, which replies wait for, would wait behind reads. In one pool of several
        # threads, each write would wake a second one, which takes Python's lock from the first and from the loop.
        self._threads = [ThreadPoolExecutor(1, "writer") for _ in range(THREADS)]
        self._writes = [0] * THREADS
        """Of each thread, begun and not reported."""
        self._has_unnamed_files = hasattr(os, "O_TMPFILE")
        self._written: set[str] = set()
        """The folders of shards, or above, that have had an object; the store keeps them when they are empty."""
        self._ahead: dict[str, int] = {}
        """Folder → the file of its next object."""
        weakref.finalize(self, _close_all, self._ahead)

    async def create(self, path: str, data: bytes) -> None:
        """See `Store.create`. A write whose caller is cancelled runs to its end."""
        folder, name = os.path.split(os.path.join(self._root, path))  # noqa: PTH118 - pathlib costs more than the link
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[BaseException | None] = loop.create_future()
        thread = self._writes.index(min(self._writes))

        def report(error: BaseException | None) -> None:
            self._writes[thread] -= 1
            if not outcome.done():
                outcome.set_result(error)
            loop.call_soon(self._prepare, folder)  # After the turn of who waits, which may write the next object.

        def written(write: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # The loop was closed after the caller was cancelled.
                loop.call_soon_threadsafe(report, write.exception())

        # `run_in_executor` takes two turns of the loop more to tell the outcome, and every reply waits for it.
        self._writes[thread] += 1
        self._threads[thread].submit(self._create, folder, name, data).add_done_callback(written)
        if (error := await outcome) is not None:
            raise error

    def _prepare(self, folder: str) -> None:
        # Beside another write, this would delay that one by as much as it saves.
        if any(self._writes) or folder in self._ahead:
            return
        folders = list(self._ahead)  # Writers take files meanwhile.
        if len(folders) >= MAX_FILES_AHEAD and (handle := self._ahead.pop(folders[0], None)) is not None:
            os.close(handle)
        self._threads[0].submit(self._open_ahead, folder)

    def _open_ahead(self, folder: str) -> None:
        with contextlib.suppress(OSError):  # The next write reports it.
            handle = self._open_unnamed(folder)
            if handle is not None and self._ahead.setdefault(folder, handle) != handle:
                os.close(handle)

    def _create(self, folder: str, name: str, data: bytes) -> None:
        try:
            folder_handle = self._open_folder(folder)
        except OSError as error:
            raise StoreUnavailableError(f"cannot write {folder}/{name}: {error.strerror or error}") from error
        try:
            self._link_new(folder_handle, f"{folder}/{name}", data)
            try:
                os.fsync(folder_handle)
            except OSError as error:
                reason = f"cannot sync the folder of {folder}/{name}: {error.strerror or error}"
                raise NotDurableError(reason) from error
            self._written.add(self._kept(folder))
        finally:
            os.close(folder_handle)

    def _open_folder(self, folder: str) -> int:
        """Open ``folder``; create what is missing. Raises OSError: it cannot, or the root's disk is not mounted."""
        with contextlib.suppress(FileNotFoundError):
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        kept = self._kept(folder)
        if self._written and not (self._root.is_dir() and any(self._root.iterdir())):
            kept = str(self._root)
        elif kept not in self._written or os.path.isdir(kept):  # noqa: PTH112 - as above
            return open_folder(folder)
        advice = "mount its disk again; if they were removed on purpose, restart this process"
        raise FileNotFoundError(errno.ENOENT, f"{kept} has lost all its objects: {advice}")

    def _kept(self, folder: str) -> str:
        """Return ``folder``, or the folder of a shard above it."""
        return "/".join(folder.split("/")[: len(self._root.parts) + SHARD_DEPTH])

    def _link_new(self, folder_handle: int, target: str, data: bytes) -> None:
        """Write ``data`` durably and link it to ``target``, whose folder is open as ``folder_handle``."""
        folder, name = os.path.split(target)
        temporary_name = None
        try:
            handle = self._ahead.pop(folder, None)
            if handle is not None and os.fstat(handle).st_dev != os.fstat(folder_handle).st_dev:
                os.close(handle)  # Another file system has been mounted there since.
                handle = None
            if handle is None:
                handle = self._open_unnamed(folder)
            if handle is None:
                temporary_name = f".{name}.{secrets.token_hex(6)}"
                handle = os.open(temporary_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder_handle)
            try:
                written = os.write(handle, data)
                while written < len(data):
                    written += os.write(handle, data[written:])
                os.fsync(handle)
                # The source needs a folder too: without one Python links the symbolic link in /proc, not the file.
                source = temporary_name or f"/proc/self/fd/{handle}"
                os.link(
                    source,
                    name,
                    src_dir_fd=folder_handle,
                    dst_dir_fd=folder_handle,
                    follow_symlinks=temporary_name is None,
                )
            finally:
                # The data is durable after fsync, whatever close returns.
                with contextlib.suppress(OSError):
                    os.close(handle)
        except FileExistsError:
            raise ObjectExistsError(f"{target} already exists") from None
        except OSError as error:
            raise StoreUnavailableError(f"cannot create {target}: {error.strerror or error}") from error
        finally:
            if temporary_name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary_name, dir_fd=folder_handle)

    def _open_unnamed(self, folder: str) -> int | None:
        """Return a file without a name, open for writing; None if the file system has no such files. Raises OSError."""
        if not self._has_unnamed_files:
            return None
        try:
            return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
            self._has_unnamed_files = False
            return None


def _close_all(handles: dict[str, int]) -> None:
    for handle in handles.values():
        os.close(handle)


def open_folder(folder: str) -> int:
    """Open ``folder``; create it and its parents durably if they are missing."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        parent = open_folder(os.path.dirname(folder))  # noqa: PTH120 - pathlib is slow
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)  # noqa: PTH102 - as parent
            os.fsync(parent)
        finally:
            os.close(parent)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
