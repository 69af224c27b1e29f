"""Refuse a ledger that is not the cluster's, although its URL is: a disk of this machine alone, or one not mounted.

The ledger has a random id in one object, and the cluster's node in ZooKeeper has the same id.

1. A cluster without an id takes that of the ledger at its first start. A ledger without one gets one then.
   Both are written only if absent, so of two daemons with different ledgers one is refused.
2. A ledger with another id ends the daemon: it would write a second history.
3. A ledger without an id, under a cluster that has one, is a fault that a mount repairs.

`headgate ledger copy` does not copy the id: a copy is another ledger, and gets an id of its own.
"""

from collections.abc import Awaitable, Callable

import structlog

from headgate.errors import ConfigError, LedgerError
from headgate.ledger.identity import claim_ledger_id, read_ledger_id
from headgate.ledger.paths import IDENTITY_PATH
from headgate.storage.object_store import Store

log = structlog.get_logger(__name__)


class LedgerIdentity:
    def __init__(
        self, store: Store, *, url: str, node: str, known: str | None, claim: Callable[[str], Awaitable[str]]
    ) -> None:
        """``known``: the cluster's id. If it has none, ``claim(id)`` stores one and returns what is stored."""
        self._store = store
        self._url = url
        self._node = node
        self._known = known
        self._claim = claim

    @property
    def ledger_id(self) -> str | None:
        """The cluster's id; None before `require` has returned once."""
        return self._known

    async def require(self) -> None:
        """Return if the store has the cluster's ledger.

        Raises:
            ConfigError: it has another one.
            LedgerError: its id is missing or unusable.
            StoreUnavailableError: the store is unreachable.
        """
        found = await read_ledger_id(self._store, self._url)
        if self._known is None:
            if found is None:
                found = await claim_ledger_id(self._store, self._url)
                log.info("ledger.identified", ledger_id=found, url=self._url)
            # Readers see an object a moment before it is durable, and ZooKeeper must not know it longer.
            await self._store.make_durable("")
            self._known = await self._claim(found)
        if found is None:
            raise LedgerError(
                f"{self._url} has no object {IDENTITY_PATH}, and the cluster's ledger has one with the id "
                f"{self._known} (ledger_id in the ZooKeeper node {self._node}). Mount the cluster's ledger. If it was "
                "moved, or lost the object, while all daemons are stopped, remove ledger_id from that node"
            )
        if found != self._known:
            raise ConfigError(
                f"{self._url} is another ledger here: its object {IDENTITY_PATH} has the id {found}, and cluster node "
                f"{self._node} in ZooKeeper has {self._known}. All daemons need one ledger, not a disk each: mount the "
                "cluster's. If it was moved while all daemons are stopped, remove ledger_id from that node"
            )
