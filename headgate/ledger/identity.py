"""The random id of a ledger, in one object. Whatever is remembered about a ledger names this id.

`headgate ledger copy` does not copy it: a copy is another ledger, and gets an id when a cluster starts on it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from headgate.errors import LedgerError, ObjectMissingError
from headgate.ledger import checksum
from headgate.ledger.format_version import check_json_format
from headgate.ledger.paths import IDENTITY_PATH
from headgate.storage.object_store import Store

IDENTITY_FORMAT: Final = 1
_ID: Final = re.compile(r"[0-9a-f]{32}")


class _Identity(msgspec.Struct):
    format: int
    ledger_id: str


def is_ledger_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def identity_object(ledger_id: str) -> bytes:
    """Return the content of the object at `IDENTITY_PATH`."""
    return checksum.seal_json(msgspec.json.encode(_Identity(IDENTITY_FORMAT, ledger_id)))


async def read_ledger_id(store: Store, url: str) -> str | None:
    """Return the id of the ledger at ``url``; None: it has none.

    Raises:
        LedgerError: the object is unusable.
        StoreUnavailableError: the store is unreachable.

    """
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
