"""The object store, as headgate needs it: create once, read, list, delete.

`Store` is what the rest of the program sees. `LocalStore` is a folder; `RemoteStore` is any bucket that obstore can
reach. Both answer put-if-absent with exactly three outcomes: created and durable, taken by somebody else
(ObjectExistsError), or an error that says whether anything can have been written. Nothing here retries: whether to try
again is the caller's decision, and for a chunk it must not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from typing import Any, Protocol
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

    async def delete(self, path: str) -> None:
        """Delete the object; one that is missing is fine. Raises StoreUnavailableError."""


class LocalStore:
    """A folder on this machine.

    An object is written beside its place, fsynced, then linked to its name: the link is atomic, fails if the name is
    taken, and can never show half an object, not even after a power cut.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        await asyncio.to_thread(self._create, path, data)

    async def read(self, path: str) -> bytes:
        """See `Store.read`."""
        return await asyncio.to_thread(self._read, path)

    async def names(self, prefix: str, after: str = "") -> list[str]:
        """See `Store.names`."""
        return await asyncio.to_thread(self._names, prefix, after)

    async def delete(self, path: str) -> None:
        """See `Store.delete`."""
        await asyncio.to_thread(self._delete, path)

    def _create(self, path: str, data: bytes) -> None:
        target = self._root / path
        draft = target.parent / f".{target.name}.{secrets.token_hex(6)}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            _discard(draft)
            raise StoreUnavailableError(f"cannot write {target}: {error.strerror or error}") from error
        try:
            os.link(draft, target)
        except FileExistsError:
            raise ObjectExistsError(f"{target} exists already") from None
        except OSError as error:
            raise StoreUnavailableError(f"cannot create {target}: {error.strerror or error}") from error
        finally:
            _discard(draft)
        try:
            self._sync_folder(target.parent)
        except OSError as error:
            raise OutcomeUnknownError(f"cannot sync the folder of {target}: {error.strerror or error}") from error

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

    def _delete(self, path: str) -> None:
        try:
            (self._root / path).unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailableError(f"cannot delete {self._root / path}: {error.strerror or error}") from error

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
            raise OutcomeUnknownError(f"cannot tell whether {path} was written: {error}") from error

    async def read(self, path: str) -> bytes:
        """See `Store.read`."""
        try:
            answer = await obstore.get_async(self._bucket, path)
            return bytes(await answer.bytes_async())
        except (obstore.exceptions.NotFoundError, FileNotFoundError):
            raise ObjectMissingError(f"{path} does not exist") from None
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot read {path}: {error}") from error

    async def names(self, prefix: str, after: str = "") -> list[str]:
        """See `Store.names`."""
        found: list[str] = []
        try:
            offset = f"{prefix}/{after}" if after else None
            async for page in obstore.list(self._bucket, prefix=f"{prefix}/", offset=offset):
                found.extend(item["path"].rsplit("/", 1)[-1] for item in page)
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot list {prefix}: {error}") from error
        return sorted(name for name in found if name > after)

    async def delete(self, path: str) -> None:
        """See `Store.delete`."""
        try:
            await obstore.delete_async(self._bucket, path)
        except (obstore.exceptions.NotFoundError, FileNotFoundError):
            return
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailableError(f"cannot delete {path}: {error}") from error


def _discard(draft: Path) -> None:
    """Remove a draft. What hindered the write may hinder this too; drafts are not objects, so one may stay behind."""
    with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)


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
        return RemoteStore(obstore.store.from_url(url))
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"ledger URL {url!r}: {error}") from error
