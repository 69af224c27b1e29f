"""The object store as headgate needs it: create once, read, list, delete.

Put-if-absent has three outcomes: created and durable, already present (ObjectExistsError), or an
error that states whether anything can have been written. Nothing here retries, except obstore (see
RETRIES). The caller decides whether to try again; for a chunk it must not.
"""

import asyncio
import atexit
import contextlib
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
import obstore.exceptions
import obstore.store

from headgate.errors import (
    ConfigError,
    ForeignObjectError,
    NotDurableError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from headgate.storage.local_writer import SHARD_DEPTH, LocalWriter

MAX_CHUNK_BYTES: Final = 512 * 1024 * 1024
"""Twice the largest `ingest.queue_bytes`, which limits what waits for the next chunk."""
MAX_BYTES: Final = {"ledger.json": 64 * 1024, "snapshots": 2 * 1024 * 1024 * 1024, "manifests": 256 * 1024 * 1024}
"""First part of a path → limit in bytes; `MAX_CHUNK_BYTES` for all others."""
RETRIES: Final[Any] = {
    "max_retries": 7,
    "retry_timeout": timedelta(seconds=8),
    "backoff": {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(seconds=1), "base": 2},
}
"""How often obstore repeats a request to a busy bucket. Its defaults pause for 100 ms at first, as long as ten
writes to a fast bucket, and give up after three minutes, which exceeds every time limit here. A repeated creation may
find its own first attempt and report that the object exists; `create_own` recognizes it."""
_MISSING: Final = (obstore.exceptions.NotFoundError, FileNotFoundError)
PROBE_TIMEOUT_SECONDS: Final = 10.0
"""For all operations; obstore repeats each for up to 8 s."""
T = TypeVar("T")


def max_bytes(path: str) -> int:
    return MAX_BYTES.get(path.partition("/")[0], MAX_CHUNK_BYTES)


def check_size(path: str, size_bytes: int) -> None:
    """Raise ForeignObjectError if the object is larger than any that headgate writes there.

    A reader checks this before it reads: an endless or huge object under the name of a chunk must not use up the memory
    of a process that leads other shards. No store writes what no store reads.
    """
    if size_bytes > (limit := max_bytes(path)):
        raise ForeignObjectError(
            f"{path} has {size_bytes} bytes, and headgate writes at most {limit} there: remove it, or restore the "
            "object from a copy"
        )


@atexit.register
def _await_foreign_threads() -> None:
    """Wait until obstore's threads have left Python. One that returns to it at the end aborts the process (SIGABRT)."""
    until = time.monotonic() + 1.0
    known = {each.ident for each in threading.enumerate()}
    while sys._current_frames().keys() - known and time.monotonic() < until:  # noqa: SLF001 - documented
        time.sleep(0.001)


class Store(Protocol):
    async def create(self, path: str, data: bytes) -> None:
        """Write ``data`` at ``path`` if there is no object; return once it is durable.

        Raises:
            ObjectExistsError: the object already exists. A bucket, or a disk in the network, may have repeated the
                request, and found the object that its first attempt created.
            StoreUnavailableError: nothing was written.
            OutcomeUnknownError: it may or may not have been written.
            NotDurableError: it was written, and a power failure may remove it.
            ForeignObjectError: it is too large to be read again (`check_size`); nothing was written.
        """

    async def read(self, path: str) -> bytes:
        """Return the object; raises ObjectMissingError, StoreUnavailableError or ForeignObjectError."""

    async def names(self, prefix: str, after: str = "") -> list[str]:
        """Return the names of the objects in the folder ``prefix`` greater than ``after``, sorted.

        Raises StoreUnavailableError.
        """

    async def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders in the folder ``prefix``, sorted; raises StoreUnavailableError."""

    async def paths(self, prefix: str) -> list[str]:
        """Return the paths of all objects below the folder ``prefix``, sorted; raises StoreUnavailableError."""

    async def delete(self, path: str) -> None:
        """Delete the object if it exists; raises StoreUnavailableError."""

    async def make_durable(self, folder: str) -> None:
        """Return once every object is durable that readers have seen in ``folder``; raises StoreUnavailableError.

        Readers of a local folder see an object a moment before `create` returns, and a power failure in between
        removes it. ``folder`` may be an object, too, which another program has written.
        """


class LocalStore:
    """A folder on this machine. headgate.storage.local_writer writes the objects."""

    def __init__(self, root: Path, *, waits: bool = False) -> None:
        """Open the folder ``root``. ``waits``: a read blocks the loop, which takes less than a change of thread."""
        self._root = root.absolute()
        self._writer = LocalWriter(self._root)
        self._waits = waits
        self._threads = ThreadPoolExecutor(32, "store")
        """Its own, as many as asyncio's at most: a disk that hangs must not take those of the page and of logins."""

    def _in_thread(self, call: Callable[..., T], *arguments: object) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def create(self, path: str, data: bytes) -> None:
        check_size(path, len(data))
        await self._writer.create(path, data)

    async def read(self, path: str) -> bytes:
        return self._read(path) if self._waits else await self._in_thread(self._read, path)

    async def names(self, prefix: str, after: str = "") -> list[str]:
        return await self._in_thread(self._scan, prefix, os.DirEntry.is_file, after)

    async def folders(self, prefix: str) -> list[str]:
        return await self._in_thread(self._scan, prefix, os.DirEntry.is_dir)

    async def paths(self, prefix: str) -> list[str]:
        return await self._in_thread(self._paths, prefix)

    async def delete(self, path: str) -> None:
        """See `Store.delete`. Also removes folders that become empty, except those of a shard."""
        await self._in_thread(self._delete, path)

    async def make_durable(self, folder: str) -> None:
        await self._in_thread(self._make_durable, folder)

    def _make_durable(self, folder: str) -> None:
        path = self._root / folder
        with _reported("sync", path), contextlib.suppress(FileNotFoundError):  # Nothing was seen in it.
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _read(self, path: str) -> bytes:
        file = f"{self._root}/{path}"
        with _reported("read", file):
            # Before it is opened: a pipe would block, and a device may react.
            found = os.stat(file)  # noqa: PTH116 - a small object is read in the time that pathlib takes
            if not stat.S_ISREG(found.st_mode):
                raise ForeignObjectError(f"{path} is not a regular file in {self._root}: remove it")
            check_size(path, found.st_size)
            with open(file, "rb") as opened:  # noqa: PTH123 - likewise
                return opened.read(found.st_size)

    def _scan(self, prefix: str, kind: Callable[[os.DirEntry[str]], bool], after: str = "") -> list[str]:
        folder = self._root / prefix
        with _reported("list", folder), contextlib.suppress(FileNotFoundError), os.scandir(folder) as items:
            # ``kind`` asks the disk about a link, and on some file systems about everything.
            return sorted(each.name for each in items if each.name > after and each.name[0] != "." and kind(each))
        return []

    def _paths(self, prefix: str) -> list[str]:
        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise StoreUnavailableError(f"cannot list {self._root / prefix}: {error.strerror or error}") from error

        paths = [
            os.path.join(folder, name)  # noqa: PTH118 - many names, and pathlib is slow
            for folder, _, names in os.walk(self._root / prefix, onerror=fail)
            for name in names
            if not name.startswith(".")
        ]
        return sorted(os.path.relpath(path, self._root) for path in paths)

    def _delete(self, path: str) -> None:
        with _reported("delete", self._root / path):
            (self._root / path).unlink(missing_ok=True)
        folder = Path(path).parent
        with contextlib.suppress(OSError):  # Not empty, or already removed.
            while len(folder.parts) > SHARD_DEPTH:
                (self._root / folder).rmdir()
                folder = folder.parent


class RemoteStore:
    """A bucket of S3, GCS or Azure, or any other store that obstore opens by URL."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    async def create(self, path: str, data: bytes) -> None:
        """See `Store.create`. After any failure but "exists" the outcome is unknown: the request may have arrived."""
        check_size(path, len(data))
        try:
            await obstore.put_async(self._bucket, path, data, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError:
            raise ObjectExistsError(f"{path} already exists") from None
        except (OSError, obstore.exceptions.BaseError) as error:  # The bucket itself may not exist.
            raise OutcomeUnknownError(f"unknown whether {path} was written: {_reason(error)}") from error

    async def read(self, path: str) -> bytes:
        with _reported("read", path):
            response = await obstore.get_async(self._bucket, path)
            check_size(path, response.meta["size"])
            return bytes(await response.bytes_async())

    async def names(self, prefix: str, after: str = "") -> list[str]:
        paths = await self._list(prefix, f"{prefix}/{after}" if after else None)
        names = (path.removeprefix(f"{prefix}/") for path in paths)
        return sorted(name for name in names if name > after and "/" not in name)

    async def folders(self, prefix: str) -> list[str]:
        with _reported("list", prefix):
            listing = await obstore.list_with_delimiter_async(self._bucket, prefix)
        return sorted(path.rsplit("/", 1)[-1] for path in listing["common_prefixes"])

    async def paths(self, prefix: str) -> list[str]:
        return sorted(await self._list(prefix))

    async def delete(self, path: str) -> None:
        with _reported("delete", path), contextlib.suppress(*_MISSING):
            await obstore.delete_async(self._bucket, path)

    async def make_durable(self, folder: str) -> None:
        """See `Store.make_durable`. A bucket shows only what is durable."""

    async def _list(self, prefix: str, offset: str | None = None) -> list[str]:
        """Return the paths of all objects below the folder ``prefix`` that are greater than ``offset``."""
        with _reported("list", prefix):
            pages = obstore.list(self._bucket, prefix=f"{prefix}/", offset=offset)
            return [item["path"] async for page in pages for item in page]


@contextlib.contextmanager
def _reported(verb: str, path: Path | str) -> Iterator[None]:
    """Raise ObjectMissingError if there is nothing to read, and StoreUnavailableError for other failures."""
    try:
        yield
    except (OSError, obstore.exceptions.BaseError) as error:
        if verb == "read" and isinstance(error, _MISSING):
            raise ObjectMissingError(f"{path} does not exist") from None
        found = getattr(error, "filename", None) or path or "the bucket"
        raise StoreUnavailableError(f"cannot {verb} {found}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the message of the system, or obstore's first line with the code and the message of the bucket's answer.

    Query strings have signatures, and are left out.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    first, *_ = text.splitlines() or [type(error).__name__]
    reason = re.sub(r"(://[^\s?]+)[?]\S+", r"\1", first.partition("<")[0]).rstrip(": ")
    answer = (re.search(rf"<{name}>([^<\n]+)", text) for name in ("Code", "Message"))
    reason = ": ".join([reason, *(found[1] for found in answer if found)])
    if "builder error" in reason and " http://" in reason:  # what obstore says of it
        prefix = "AZURE" if "MicrosoftAzure" in reason else "AWS"
        reason += f"; an endpoint without TLS needs {prefix}_ALLOW_HTTP=true in the environment"
    if re.search("/latest/api/token|/computeMetadata/|/metadata/identity", reason):  # of a machine of the provider
        reason += "; the environment has no credentials of the store, and this machine has no role"
    if "Account must be specified" in reason:
        reason += "; set AZURE_STORAGE_ACCOUNT_NAME in the environment"
    return reason


def open_store(url: str, *, waits: bool = False) -> Store:
    """Return the store at ``url``: ``file:///folder``, or any URL that obstore supports (``s3:``, ``gs:``, ``az:`` …).

    ``waits``: for a process that has nothing else to do meanwhile (`LocalStore`).

    Raises ConfigError: the URL is not that of a store.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"ledger URL {url!r}: write file:///absolute/folder")
        return LocalStore(Path(unquote(parts.path)), waits=waits)
    try:
        return RemoteStore(obstore.store.from_url(url, retry_config=RETRIES))
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"ledger URL {url!r}: {_reason(error)}") from error


async def create_own(store: Store, path: str, data: bytes) -> None:
    """Create ``path`` once; return once it is durable. Raises what `Store.create` raises.

    A store may lose its answer, and a bucket repeats a request whose answer was lost: it then finds its own object.
    If the store reports that the object exists, or cannot report the outcome, it is read. Equal bytes were written by
    this call, or are as good: ``data`` has a random id in it, or follows from the ledger. If no object is there, or it
    cannot be read, nothing is known: the request may still arrive, or another one, with which it was in conflict.
    """
    try:
        await store.create(path, data)
    except NotDurableError:
        raise
    except (ObjectExistsError, OutcomeUnknownError) as error:
        try:
            stored = await store.read(path)
        except ForeignObjectError as other:
            raise ObjectExistsError(str(other)) from error
        except StoreError as unread:
            raise OutcomeUnknownError(f"{error}; {unread}") from error
        if stored != data:
            raise ObjectExistsError(f"{path} exists, with other content") from error
        try:
            await store.make_durable(path.rpartition("/")[0])
        except StoreUnavailableError as undurable:
            raise NotDurableError(str(undurable)) from undurable


async def create_if_absent(store: Store, path: str, data: bytes) -> None:
    """Return once there is an object at ``path``, this one or another; raises StoreUnavailableError."""
    with contextlib.suppress(ObjectExistsError):
        try:
            await create_own(store, path, data)
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(str(error)) from error


async def write_problem(store: Store) -> str | None:
    """Return why no leader can write to ``store``; None if one can.

    It leaves no object behind, unless it is cancelled, or takes too long, or deleting fails.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            return await _write_problem(store)
    except TimeoutError:
        return f"the store did not complete a write within {PROBE_TIMEOUT_SECONDS:g} s"


async def _write_problem(store: Store) -> str | None:
    path, first = f"write-probe-{secrets.token_hex(8)}", secrets.token_bytes(8)
    try:
        try:
            await create_own(store, path, first)
            with contextlib.suppress(ObjectExistsError):
                await create_own(store, path, b"second")
            replaced = await store.read(path) != first
        except StoreError:
            with contextlib.suppress(StoreError):  # What failed first says more.
                await store.delete(path)  # Not when it is cancelled: a store that hangs would hang here, too.
            raise
        await store.delete(path)
    except StoreError as error:
        needed = "check its permissions or credentials and its space, and in a folder inodes and hard links"
        return f"{error}. A leader needs to create objects: {needed}"
    if replaced:
        return "a second write replaced an object, as two leaders would: use a store that honors If-None-Match"
    return None
