"""The object store, as headgate needs it: create once, read, list, delete.

`Store` is what the rest of the program sees. `LocalStore` is a folder; `RemoteStore` is any bucket that obstore can
reach. Both answer put-if-absent with exactly three outcomes: created and durable, taken by somebody else
(ObjectExistsError), or an error that says whether anything can have been written. Nothing here retries: whether to try
again is the caller's decision, and for a chunk it must not. (A bucket that is busy, obstore asks again: see RETRIES.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import obstore
import obstore.exceptions
import obstore.store

from headgate.errors import (
    ConfigError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from headgate.storage.local_writer import LocalWriter

_SHARD_DIRECTORY_DEPTH = 2
"""``compacted/shard=0003``: a writer may be about to put something there."""

RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=8)}
"""What obstore repeats by itself when a bucket is busy; its own three minutes would outlast every wait of ours. A
creation that is repeated may find its own first attempt: told as taken, it ends a reign as an unknown outcome does."""


class Store(Protocol):
    """A place for objects, each written once."""

    async def create(self, path: str, data: bytes) -> None:
        """Write ``data`` at ``path`` if nothing is there; return once it is durable.

        Raises:
            ObjectExistsError: something is there already.
            StoreUnavailableError: certainly nothing was written.
            OutcomeUnknownError: it may or may not have been written.

        """

    async def read(self, path: str) -> bytes:
        """Return the object; raises ObjectMissingError or StoreUnavailableError."""

    async def names(self, prefix: str, after: str = "") -> list[str]:
        """Return the names in the folder ``prefix`` that are greater than ``after``, sorted; StoreUnavailableError."""

    async def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders in the folder ``prefix``, sorted; StoreUnavailableError."""

    async def paths(self, prefix: str) -> list[str]:
        """Return the paths of all objects below the folder ``prefix``, at any depth, sorted; StoreUnavailableError."""

    async def delete(self, path: str) -> None:
        """Delete the object; one that is missing is fine. Raises StoreUnavailableError."""


class LocalStore:
    """A folder on this machine; how it is written to is in headgate.storage.local_writer."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._writer = LocalWriter(self._root)

    async def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        await self._writer.create(path, data)

    async def read(self, path: str) -> bytes:
        """See `Store.read`."""
        return await asyncio.to_thread(self._read, path)

    async def names(self, prefix: str, after: str = "") -> list[str]:
        """See `Store.names`."""
        return await asyncio.to_thread(self._names, prefix, after)

    async def folders(self, prefix: str) -> list[str]:
        """See `Store.folders`."""
        return await asyncio.to_thread(self._folders, prefix)

    async def paths(self, prefix: str) -> list[str]:
        """See `Store.paths`."""
        return await asyncio.to_thread(self._paths, prefix)

    async def delete(self, path: str) -> None:
        """See `Store.delete`. Folders that it leaves empty go too, but for those of a shard."""
        await asyncio.to_thread(self._delete, path)

    def _read(self, path: str) -> bytes:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            raise ObjectMissingError(f"{self._root / path} does not exist") from None
        except OSError as error:
            raise StoreUnavailableError(f"cannot read {self._root / path}: {error.strerror or error}") from error

    def _names(self, prefix: str, after: str) -> list[str]:
        try:
            with os.scandir(self._root / prefix) as found:
                return sorted(item.name for item in found if not item.name.startswith(".") and item.name > after)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreUnavailableError(f"cannot list {self._root / prefix}: {error.strerror or error}") from error

    def _folders(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._root / prefix) as found:
                return sorted(item.name for item in found if item.is_dir() and not item.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreUnavailableError(f"cannot list {self._root / prefix}: {error.strerror or error}") from error

    def _paths(self, prefix: str) -> list[str]:
        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise StoreUnavailableError(f"cannot list {self._root / prefix}: {error.strerror or error}") from error

        found = [
            os.path.join(folder, name)  # noqa: PTH118 - many names, and pathlib is slow
            for folder, _, names in os.walk(self._root / prefix, onerror=fail)
            for name in names
            if not name.startswith(".")
        ]
        return sorted(os.path.relpath(path, self._root) for path in found)

    def _delete(self, path: str) -> None:
        try:
            (self._root / path).unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailableError(f"cannot delete {self._root / path}: {error.strerror or error}") from error
        folder = Path(path).parent
        with contextlib.suppress(OSError):  # Not empty, or gone: either is fine.
            while len(folder.parts) > _SHARD_DIRECTORY_DEPTH:
                (self._root / folder).rmdir()
                folder = folder.parent


class RemoteStore:
    """A bucket of S3, GCS or Azure, or whatever else obstore reaches by URL."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    async def create(self, path: str, data: bytes) -> None:
        """See `Store.create`. Any failure but "exists" leaves the outcome unknown: the request may have arrived."""
        try:
            await obstore.put_async(self._bucket, path, data, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError:
            raise ObjectExistsError(f"{path} exists already") from None
        except obstore.exceptions.BaseError as error:
            raise OutcomeUnknownError(f"cannot tell whether {path} was written: {_reason(error)}") from error

    async def read(self, path: str) -> bytes:
        """See `Store.read`."""
        try:
            answer = await obstore.get_async(self._bucket, path)
            return bytes(await answer.bytes_async())
        except (obstore.exceptions.NotFoundError, FileNotFoundError):
            raise ObjectMissingError(f"{path} does not exist") from None
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot read {path}: {_reason(error)}") from error

    async def names(self, prefix: str, after: str = "") -> list[str]:
        """See `Store.names`."""
        found: list[str] = []
        try:
            offset = f"{prefix}/{after}" if after else None
            async for page in obstore.list(self._bucket, prefix=f"{prefix}/", offset=offset):
                found.extend(item["path"].removeprefix(f"{prefix}/") for item in page)
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot list {prefix}: {_reason(error)}") from error
        return sorted(name for name in found if name > after and "/" not in name)

    async def folders(self, prefix: str) -> list[str]:
        """See `Store.folders`."""
        try:
            found = await obstore.list_with_delimiter_async(self._bucket, prefix)
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot list {prefix}: {_reason(error)}") from error
        return sorted(path.rsplit("/", 1)[-1] for path in found["common_prefixes"])

    async def paths(self, prefix: str) -> list[str]:
        """See `Store.paths`."""
        found: list[str] = []
        try:
            async for page in obstore.list(self._bucket, prefix=f"{prefix}/"):
                found.extend(item["path"] for item in page)
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot list {prefix}: {_reason(error)}") from error
        return sorted(found)

    async def delete(self, path: str) -> None:
        """See `Store.delete`."""
        try:
            await obstore.delete_async(self._bucket, path)
        except (obstore.exceptions.NotFoundError, FileNotFoundError):
            return
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot delete {path}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return obstore's first line; pages of its own innards follow. An address may carry a signature: it is cut off."""
    lines = str(error).splitlines()
    return re.sub(r"[?]\S+", "", lines[0]) if lines else type(error).__name__


def open_store(url: str) -> Store:
    """Return the store at ``url``: ``file:///folder``, or any URL of obstore's (``s3:``, ``gs:``, ``az:`` …).

    Raises:
        ConfigError: a URL that names no store.

    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"ledger URL {url!r}: write file:///absolute/folder")
        return LocalStore(Path(unquote(parts.path)))
    try:
        return RemoteStore(obstore.store.from_url(url, retry_config=RETRIES))
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"ledger URL {url!r}: {_reason(error)}") from error
