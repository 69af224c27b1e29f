"""Tries what a leader needs of a store: an object is created only if it is absent, and can be read and deleted."""

import secrets

from headgate.errors import ObjectExistsError, StoreError
from headgate.storage.object_store import Store


async def write_problem(store: Store) -> str | None:
    """Return why no leader can write to ``store``; None if one can.

    It leaves no object behind, unless it is cancelled, or deleting fails.
    """
    path, first = f"write-probe-{secrets.token_hex(8)}", secrets.token_bytes(8)
    try:
        try:
            await _create(store, path, first)
            await _create(store, path, b"second")
            replaced = await store.read(path) != first
        except StoreError:
            await store.delete(path)  # Not when it is cancelled: a store that hangs would hang here, too.
            raise
        await store.delete(path)
    except StoreError as error:
        return f"{error}. A leader needs to create objects: check its permissions, and in a folder hard links"
    if replaced:
        return "a second write replaced an object, as two leaders would: use a store that honors If-None-Match"
    return None


async def _create(store: Store, path: str, data: bytes) -> None:
    try:
        await store.create(path, data)
    except ObjectExistsError:
        return  # The second time, or the store repeated the request after its answer was lost.
