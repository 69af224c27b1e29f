"""The random id of a ledger, in one object. Whatever is remembered about a ledger names this id.

`headgate ledger copy` does not copy it: a copy is another ledger, and has an id of its own.
"""

import re
import secrets
from contextlib import suppress
from typing import Final

import msgspec

from headgate.errors import (
    LedgerError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from headgate.ledger import checksum
from headgate.ledger.format_check import check_json_format
from headgate.ledger.paths import IDENTITY_PATH, MANIFESTS_FOLDER
from headgate.storage.object_store import Store, create_own

IDENTITY_FORMAT: Final = 1
_ID: Final = re.compile(r"[0-9a-f]{32}")


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
    with suppress(ObjectExistsError):
        try:
            await create_own(store, IDENTITY_PATH, identity_object(wanted))
        except OutcomeUnknownError as error:
            # The next attempt reads what was written.
            raise StoreUnavailableError(str(error)) from error
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
