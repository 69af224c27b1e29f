"""Tries what a leader needs of a store: an object is created only if it is absent, and can be read and deleted."""

import asyncio
import contextlib
import secrets
from typing import Final

from headgate.errors import ObjectExistsError, StoreError
from headgate.storage.object_store import Store
from headgate.storage.own_object import create_own

PROBE_TIMEOUT_SECONDS: Final = 10.0
"""For all operations; obstore repeats each for up to 8 s."""


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
