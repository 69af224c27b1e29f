"""What a ledger says of itself as a whole: its random id, and the feature levels under which it was written.

Whatever is remembered about a ledger names its id. `headgate ledger copy` does not copy the id: a copy is another
ledger, and has an id of its own.

A level is an object, and the highest counts. It is named here before anything is written that only it allows, and
before ZooKeeper has it. So a cluster whose ZooKeeper has lost its data continues at the level that it had. `headgate
ledger copy` copies it with the content. The object of a cluster's first level also names its shards, of which the last
ones may never have been led.
"""

import re
import secrets
from contextlib import suppress
from typing import Final

import msgspec

from headgate.errors import ForeignObjectError, LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.ledger import checksum
from headgate.ledger.ledger import shard_folders
from headgate.ledger.objects import IDENTITY_PATH, LEVELS_FOLDER, MANIFESTS_FOLDER, check_json_format
from headgate.storage.object_store import Store, create_if_absent

IDENTITY_FORMAT: Final = 1
_ID: Final = re.compile(r"[0-9a-f]{32}")
_NAME: Final = re.compile(r"([1-9][0-9]{0,8})\.json")


class _Identity(msgspec.Struct):
    format: int
    ledger_id: str


def is_ledger_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def identity_object(ledger_id: str) -> bytes:
    return checksum.seal_json(msgspec.json.encode(_Identity(IDENTITY_FORMAT, ledger_id)))


async def read_ledger_id(store: Store, url: str) -> str | None:
    """Return the id of the ledger at ``url``; None: it has none. Raises LedgerError or StoreUnavailableError."""
    try:
        raw = await store.read(IDENTITY_PATH)
    except ObjectMissingError:
        return None
    try:
        checksum.verify_json(raw)
        check_json_format(IDENTITY_PATH, raw, IDENTITY_FORMAT)
        return msgspec.json.decode(raw, type=_Identity).ledger_id
    except (checksum.ChecksumError, msgspec.DecodeError) as error:
        raise LedgerError(f"{IDENTITY_PATH} of {url} is damaged: {error}; replace it with an intact copy") from error


async def claim_ledger_id(store: Store, url: str) -> str:
    """Return the id of the ledger at ``url``. If it has none, it gets the one that its manifests name, or a random one.

    Raises like `read_ledger_id`.
    """
    if (found := await read_ledger_id(store, url)) is not None:
        return found
    wanted = await _named_by_a_manifest(store) or secrets.token_hex(16)
    await create_if_absent(store, IDENTITY_PATH, identity_object(wanted))
    # Another process may have been first.
    found = await read_ledger_id(store, url)
    if found is None:
        raise StoreUnavailableError(f"{IDENTITY_PATH} of {url} was created and is missing")
    return found


async def _named_by_a_manifest(store: Store) -> str | None:
    """Return the id that the ledger had before its object was lost; None if no readable manifest names one."""
    for path in await store.paths(MANIFESTS_FOLDER):
        with suppress(ObjectMissingError, LedgerError, checksum.ChecksumError, msgspec.DecodeError):
            raw = await store.read(path)
            checksum.verify_json(raw)
            if is_ledger_id(found := msgspec.json.decode(raw).get("ledger_id")):
                return str(found)
    return None


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
    # The name is what counts.
    await create_if_absent(store, _path(level), checksum.seal_json(msgspec.json.encode(_Level(1, level, shards))))
