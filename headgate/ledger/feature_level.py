"""The feature level under which a ledger was written: an object for each level that it has had; the highest counts.

A level is named here before anything is written that only it allows, and before ZooKeeper has it. So a cluster whose
ZooKeeper has lost its data continues at the level that it had. `headgate ledger copy` copies it with the content. The
object of a cluster's first level also names its shards, of which the last ones may never have been led.
"""

import re
from contextlib import suppress
from typing import Final

import msgspec

from headgate.errors import (
    ForeignObjectError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from headgate.ledger import checksum
from headgate.ledger.ledger import shard_folders
from headgate.ledger.paths import LEVELS_FOLDER
from headgate.storage.object_store import Store, create_own

_NAME: Final = re.compile(r"([1-9][0-9]{0,8})\.json")


class _Level(msgspec.Struct, omit_defaults=True):
    format: int
    level: int
    shards: int | None = None


async def read_level(store: Store) -> int | None:
    """Return the level that a ledger names; None: none. Raises StoreUnavailableError."""
    return max(await _levels(store), default=None)


async def read_shards(store: Store) -> int | None:
    """Return the number of shards with which the ledger began; None: it names none. Raises StoreUnavailableError."""
    for level in sorted(await _levels(store)):
        with suppress(ObjectMissingError, ForeignObjectError, checksum.ChecksumError, msgspec.DecodeError):
            data = await store.read(_path(level))
            checksum.verify_json(data)
            if (shards := msgspec.json.decode(data, type=_Level).shards) is not None:
                return shards
    return None


async def present_shards(store: Store) -> int:
    """Return how many shards a ledger has, of which the last ones may not have been led yet; 0: it is new."""
    return max(await read_shards(store) or 0, max(await shard_folders(store), default=-1) + 1)


async def _levels(store: Store) -> list[int]:
    return [int(found[1]) for found in map(_NAME.fullmatch, await store.names(LEVELS_FOLDER)) if found]


def _path(level: int) -> str:
    return f"{LEVELS_FOLDER}/{level}.json"


async def name_level(store: Store, level: int, shards: int | None = None) -> None:
    """Return once the ledger names ``level``, which never falls. ``shards``: with how many it begins, if it does.

    Raises StoreUnavailableError: it may not name it yet.
    """
    with suppress(ObjectExistsError):  # The name is what counts.
        try:
            data = checksum.seal_json(msgspec.json.encode(_Level(1, level, shards)))
            await create_own(store, _path(level), data)
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(str(error)) from error
