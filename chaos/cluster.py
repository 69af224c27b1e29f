"""The cluster of a run: three daemons, three ZooKeeper servers, mosquitto, Spark, producers and consumers.

Every connection of a daemon or a client to a server passes a proxy of its own, so that it can be cut in either
direction. A library in each daemon makes its disk and its clock fail (chaos.fault_shim). A daemon, or a program, that
ends on its own is noticed; daemons are then started again, as systemd does it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from bench.harness.tcp_proxy import Proxy
from chaos.fault_shim import FaultShim, SyncJournal, compile_shim, find_compiler
from controller.local.reserved_port import LOOPBACK
from controller.settings.files import toml_document
from controller.settings.load import Settings
from controller.settings.sections import IngestSettings, SpreadSettings, SubscriptionSettings
from headgate import SubscriptionType
from headgate.errors import HeadgateError
from headgate.model.layout import shard_of
from trials.cluster import EnsembleServer, LocalDaemon, last_line
from trials.recorded_cluster import Reader, RecordedCluster

DAEMONS: Final = ("daemon-1", "daemon-2", "daemon-3")
ZOOKEEPERS: Final = 3
SHARDS: Final = 3
SESSION_SECONDS: Final = 4.0
UNREACHABLE_SECONDS: Final = 5.0
"""Shorter than the faults of the network, so that leaders give up their shards during them."""
SETTLE_SECONDS: Final = 5.0
"""Short, so that shards are spread again between two faults."""
RESTART_SECONDS: Final = 1.0
"""From the end of a daemon to its next start, as in systemd's unit."""
MAX_RESTARTS: Final = 20
"""A daemon that ends more often than this in one run is not started again."""


def topic_on(shard: int, word: str) -> str:
    """Return the first of ``word``, ``word-1``, ``word-2`` … that belongs to ``shard``."""
    number, name = 0, word
    while shard_of(name, SHARDS) != shard:
        number += 1
        name = f"{word}-{number}"
    return name


ORDERS, PAYMENTS, READINGS = (topic_on(shard, word) for shard, word in enumerate(("orders", "payments", "readings")))
"""One topic per shard. The faults concern the leader of the first one. A chunk of the last one is damaged."""
TOPICS: Final = (ORDERS, PAYMENTS, READINGS)
READERS: Final = (
    Reader("billing-1", ORDERS, "billing", SubscriptionType.STREAM),
    Reader("billing-2", ORDERS, "billing", SubscriptionType.STREAM),
    Reader("audit-1", ORDERS, "audit", SubscriptionType.QUEUE),
    Reader("ledger-1", PAYMENTS, "accounts", SubscriptionType.STREAM),
    Reader("display-1", READINGS, "display", SubscriptionType.STREAM),
)


class ChaosCluster(RecordedCluster):
    """Everything that runs. Entering starts the proxies only."""

    def __init__(self, folder: Path, *, tls: bool = False) -> None:
        super().__init__(
            folder,
            tls=tls,
            name="chaos",
            shards=SHARDS,
            session_seconds=SESSION_SECONDS,
            zookeeper_servers=ZOOKEEPERS,
            broker_kind="mosquitto",
            subscriptions=SubscriptionSettings(
                grace_seconds=6.0, heartbeat_interval_seconds=1.5, revoke_timeout_seconds=15
            ),
            ingest=IngestSettings(unreachable_seconds=UNREACHABLE_SECONDS),
            spread=SpreadSettings(settle_seconds=SETTLE_SECONDS),
        )
        self.shims: dict[str, FaultShim] = {}
        self.journal: SyncJournal | None = None
        """None without a C compiler, as no `shims`."""
        self.zookeeper_links: dict[str, list[Proxy]] = {}
        """Daemon → its connection to each ZooKeeper server."""
        self.broker_links: dict[str, Proxy] = {}
        """Daemon or client → its connection to the broker."""
        self.restarts: list[str] = []
        self.may_end: set[str] = set()
        """Programs that a fault makes end, as documented. The fault starts them again."""
        self._links = AsyncExitStack()

    async def begin(self) -> None:
        """Compile the library of faults, and open the proxies of the daemons."""
        compiler = find_compiler()
        if compiler is not None:
            library = await asyncio.to_thread(compile_shim, compiler, self.folder)
            self.journal = SyncJournal(library, self.folder / "syncs")
            self.environ |= self.journal.environ
            self.shims = {name: FaultShim(self.folder / f"{name}.faults") for name in DAEMONS}
        for name in DAEMONS:
            self.broker_links[name] = await self._link(self.broker.port)
            self.zookeeper_links[name] = [await self._link(server.port) for server in self.zookeepers]

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self._links.aclose()

    async def _link(self, port: int) -> Proxy:
        return await self._links.enter_async_context(Proxy(LOOPBACK, port))

    # Daemons

    def settings(self, name: str) -> Settings:
        settings = super().settings(name)
        links = self.zookeeper_links[name]
        return settings.replace(
            zookeeper=msgspec.structs.replace(settings.zookeeper, hosts=",".join(link.address for link in links)),
            broker=msgspec.structs.replace(settings.broker, port=self.broker_links[name].port),
        )

    def daemon_environ(self, name: str) -> Mapping[str, str]:
        return {**self.environ, **(self.shims[name].environ if name in self.shims else {})}

    async def start_daemons(self) -> None:
        for name in DAEMONS:
            await self.start_daemon(name)

    async def restart_daemon(self, name: str) -> LocalDaemon:
        """Stop a daemon with SIGTERM, as an upgrade does it, and start it again."""
        if await self.stop(name) != 0:
            raise HeadgateError(f"{name} failed to stop; its log is {self.log_path(name)}")
        return await self.start_daemon(name)

    async def restore(self) -> None:
        """End what a fault that failed half way may have left: cut connections, failing disks, missing daemons."""
        for link in [*self.broker_links.values(), *(link for links in self.zookeeper_links.values() for link in links)]:
            await link.heal()
        for shim in self.shims.values():
            shim.clear()
        for name in DAEMONS:
            if name not in self.programs:
                await self.start_daemon(name)

    async def restart_ended_daemons(self) -> list[str]:
        """Start daemons that ended on their own again; return the other programs that ended, each with its reason."""
        others = []
        for name in self.exited_programs():
            process = self.programs.pop(name)
            self.daemons.pop(name, None)
            reason = f"{name} ended with code {process.returncode}: {last_line(self.log_path(name))}"
            if name in self.may_end:
                continue
            if name in DAEMONS and len(self.restarts) < MAX_RESTARTS:
                self.restarts.append(reason)
                await asyncio.sleep(RESTART_SECONDS)
                await self.start_daemon(name)
            else:
                others.append(reason)
        return others

    async def leading_zookeeper(self) -> EnsembleServer:
        """Return the ZooKeeper server that leads. Raises HeadgateError if none does."""
        for server in self.zookeepers:
            if isinstance(server, EnsembleServer) and await server.leads():
                return server
        raise HeadgateError("no ZooKeeper server leads the ensemble")

    # Clients

    async def start_ended_consumers(self) -> list[Reader]:
        ended = [reader for reader in READERS if reader.name not in self.programs]
        for reader in ended:
            await self.start_consumer(reader)
        return ended

    async def client_options(self, name: str) -> tuple[str, ...]:
        if name not in self.broker_links:
            self.broker_links[name] = await self._link(self.broker.port)
        path = self.folder / f"{name}.client.toml"
        path.write_text(toml_document("", self.client_config(broker_port=self.broker_links[name].port)))
        return "--config", str(path)
