"""Wait until the broker accepts a connection and a daemon has described the cluster, and say what is missing.

A refusal by the broker counts until the first connection. Later refusals are an outage: an operator changes a
password.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.client.handlers import Handlers
from headgate.errors import LedgerError, NoLeaderError, ProtocolError, StoreUnavailableError, TransportError
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.paths import IDENTITY_PATH
from headgate.log.event_log import get_logger
from headgate.model.hashing import ShardMap
from headgate.protocol.announcements import ClusterDescription
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.settings.config import ClientConfig
from headgate.storage.object_store import Store
from headgate.transport.port import Transport

STORE_RETRY_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 10.0
"""Daemons that hear the description of another ledger repeat theirs, a few seconds later."""
_REMEDY: Final = "Correct ledger_url of this client, or mount the cluster's ledger there"

log = get_logger(__name__)


class ClusterWatch:
    def __init__(self, transport: Transport, cluster: str, config: ClientConfig | None) -> None:
        """``config`` says how long the first connection may take; None: as long as the caller waits."""
        self._transport = transport
        self._cluster = cluster
        self.broker = "the broker" if config is None else f"the broker at {config.broker}"
        """Where it is, and which file says so, for messages."""
        self._ledger_url = "the store" if config is None else config.ledger_url
        self._broker_timeout_seconds = None if config is None else config.broker_timeout_seconds
        self._broker_answered = asyncio.Event()
        """It has accepted a connection, or refused the first one."""
        self.refusal: tuple[str, bool] | None = None
        """Why the broker refuses this client, or its requests, and whether it was the first connection."""
        self._described = asyncio.Event()
        self._description: ClusterDescription | None = None
        self._incompatible_protocol: int | None = None
        self.ledger = b""
        """Each request and reply names it; empty before a daemon has described the cluster."""
        self._other: ClusterDescription | None = None
        """The newest one of another ledger, since the own ledger was described."""
        self._silent_at = 0.0
        """When daemons of the own ledger would have answered the first such description."""
        self.shards = ShardMap(())
        """The shards of the cluster; none before it is described."""
        self.connection_handlers: Handlers[Callable[[bool], None]] = Handlers()
        """Called at each connection and loss."""

    # Events

    def connection_changed(self, connected: bool) -> None:
        if connected:
            self.refusal = None
            self._broker_answered.set()
        for handler in self.connection_handlers:
            handler(connected)

    def refused(self, reason: str) -> None:
        if not self._broker_answered.is_set():
            self.refusal = reason, True
            self._broker_answered.set()
        elif self.refusal is None:
            self.refusal = reason, False
            log.error("broker.refuses", broker=self.broker, reason=reason)

    def described(self, description: ClusterDescription) -> None:
        if self.ledger and bytes.fromhex(description.ledger_id) != self.ledger:
            self._heard_of_other(description)
            return
        self._other = None
        if description.protocol != PROTOCOL_VERSION:
            # Requests that are in progress are refused: each one carries this client's version.
            log.error(
                "cluster.protocol_mismatch",
                cluster=self._cluster,
                cluster_protocol=description.protocol,
                client_protocol=PROTOCOL_VERSION,
            )
            self._incompatible_protocol = description.protocol
        else:
            self._description, self._incompatible_protocol = description, None
            self.ledger = bytes.fromhex(description.ledger_id)
            self.learn([*description.earlier_shards, description.shards])
        self._described.set()

    def _heard_of_other(self, description: ClusterDescription) -> None:
        """Keep the description of another ledger under the cluster's name."""
        if not description.ledger_id:
            return  # Of a daemon that does not know its ledger.
        if self._other is None:
            self._silent_at = asyncio.get_running_loop().time() + SILENT_SECONDS
            about = {"ledger_id": self.ledger.hex(), "other_ledger_id": description.ledger_id}
            log.error("cluster.other_ledger", cluster=self._cluster, **about, other_ledger_url=description.ledger_url)
        self._other = description

    def doubt(self) -> None:
        """No leader has replied so far: use the other ledger that is described, if no daemon describes this one again.

        The cluster was moved, or set up again under its name. Or it is down, and another one has that name.
        """
        if self._other is not None and asyncio.get_running_loop().time() >= self._silent_at:
            self.shards, self.ledger = ShardMap(()), b""
            self.described(self._other)

    def learn(self, counts: list[int]) -> None:
        """Keep the longest list of the numbers of shards. A daemon or leader may be late, and know a shorter one."""
        found = ShardMap.read(counts)
        if found is not None and found.extends(self.shards.counts):
            self.shards = found

    # Questions

    async def description(self, timeout_seconds: float) -> ClusterDescription:
        """Wait for the cluster's description.

        Raises:
            NoLeaderError: no daemon has published it in time.
            TransportError: the broker and this program refuse each other; waiting does not help.
            ProtocolError: the cluster runs another version of the protocol; waiting does not help.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await self._reach_broker(timeout_seconds)
        try:
            async with asyncio.timeout_at(deadline):
                await self._described.wait()
        except TimeoutError:
            if not self._transport.connected:
                raise self._unreachable(timeout_seconds) from None
            raise NoLeaderError(
                f"found no daemon of cluster {self._cluster!r} through {self.broker} (waited {timeout_seconds:g} s); "
                "is one running, is that its name, and does the broker's access list (headgate access export) allow "
                "this user?"
            ) from None
        if self._incompatible_protocol is not None:
            raise ProtocolError(
                f"cluster {self._cluster!r} runs protocol {self._incompatible_protocol}, this client "
                f"{PROTOCOL_VERSION}: install the version of headgate that the cluster runs"
            )
        assert self._description is not None, "signalled without a description"
        return self._description

    async def ledger_id(self, store: Store | None, timeout_seconds: float) -> str:
        """Return the id of the cluster's ledger; empty if no daemon knows it. ``store``: has to have that ledger.

        Raises like `description`, and:
            LedgerError: the store has another ledger, or none.
            StoreUnavailableError: the store was unreachable all the time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        described = await self.description(timeout_seconds)
        url, theirs = self._ledger_url, f"the daemons of cluster {self._cluster!r} use "
        theirs += f"{described.ledger_url} with id {described.ledger_id}"
        while store is not None and described.ledger_id:
            try:
                found = await read_ledger_id(store, url)
            except StoreUnavailableError as error:
                if loop.time() + STORE_RETRY_SECONDS >= deadline:
                    raise StoreUnavailableError(f"{IDENTITY_PATH} of {url} cannot be read: {error}; {theirs}") from None
                log.warning("ledger.unverified", url=url, reason=str(error))
                await asyncio.sleep(STORE_RETRY_SECONDS)
                continue
            if found is None:
                raise LedgerError(f"{url} has no object {IDENTITY_PATH}, so it is no ledger: {theirs}. {_REMEDY}")
            if found != described.ledger_id:
                raise LedgerError(f"{url} is another ledger, with id {found}: {theirs}. {_REMEDY}")
            break
        return described.ledger_id

    def outage(self) -> str:
        return f"cannot reach {self.broker}: {self._transport.unreachable_reason or 'no connection yet'}"

    async def _reach_broker(self, timeout_seconds: float) -> None:
        """Return once the broker has accepted a connection. Raises NoLeaderError or TransportError."""
        if self._broker_timeout_seconds is not None:
            timeout_seconds = min(timeout_seconds, self._broker_timeout_seconds)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._broker_answered.wait()
        except TimeoutError:
            raise self._unreachable(timeout_seconds) from None
        if self.refusal is not None and self.refusal[1]:
            raise TransportError(f"cannot reach {self.broker}: {self.refusal[0]}")

    def _unreachable(self, waited_seconds: float) -> NoLeaderError:
        return NoLeaderError(f"{self.outage()} (waited {waited_seconds:g} s); is it running, and is that its address?")
