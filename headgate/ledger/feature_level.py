"""The feature level under which a ledger was written: an object for each level that it has had; the highest counts.

A level is named here before anything is written that only it allows, and before ZooKeeper has it. So a cluster whose
ZooKeeper has lost its data continues at the level that it had. `headgate ledger copy` copies it with the content.
"""

import re
from contextlib import suppress
from typing import Final

from headgate.errors import ObjectExistsError, OutcomeUnknownError, StoreUnavailableError
from headgate.ledger import checksum
from headgate.ledger.paths import LEVELS_FOLDER
from headgate.storage.object_store import Store
from headgate.storage.own_object import create_own

_NAME: Final = re.compile(r"([1-9][0-9]{0,8})\.json")


async def read_level(store: Store) -> int | None:
    """Return the level that a ledger names; None: none. Raises StoreUnavailableError."""
    names = map(_NAME.fullmatch, await store.names(LEVELS_FOLDER))
    return max((int(found[1]) for found in names if found), default=None)


async def name_level(store: Store, level: int) -> None:
    """Return once the ledger names ``level``, which never falls. Raises StoreUnavailableError: it may not yet."""
    with suppress(ObjectExistsError):  # The name is what counts.
        try:
            data = checksum.seal_json(b'{"format":1,"level":%d}' % level)
            await create_own(store, f"{LEVELS_FOLDER}/{level}.json", data)
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(str(error)) from error
