"""Faults of the servers that headgate needs: the broker and ZooKeeper."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Final

from chaos.faults.fault import ALL_TOPICS, Fault
from controller.local.certificates import LocalCertificateAuthority
from controller.local.security import HOSTS
from headgate.errors import HeadgateError

OLD: Final = datetime(2020, 1, 1, tzinfo=UTC)


class BrokerRestarted(Fault):
    """The broker is stopped with SIGTERM, and returns with its retained messages."""

    name = "broker-restarted"
    seconds = 3.0

    async def begin(self) -> None:
        await self.cluster.broker.stop()

    async def end(self) -> None:
        await self.cluster.broker.start()


class BrokerEmptied(BrokerRestarted):
    """The broker is stopped, loses everything it has stored, and returns."""

    name = "broker-emptied"

    async def begin(self) -> None:
        await super().begin()
        stored = self.cluster.broker.folder / "mosquitto.db"
        if not stored.exists():
            raise HeadgateError(f"the broker has stored nothing in {stored}, so nothing could be deleted")
        self.note = f"It lost {stored.stat().st_size:,} bytes."
        stored.unlink()


class BrokerKilled(Fault):
    """The broker gets SIGKILL, and returns at once with what it had last saved."""

    name = "broker-killed"
    seconds = 2.0

    async def begin(self) -> None:
        """Kill the broker; its supervisor starts it again."""
        pid = self.cluster.broker.pid
        if pid is None:
            raise HeadgateError("the broker does not run")
        os.kill(pid, signal.SIGKILL)


class CertificateExpired(Fault):
    """The broker's certificate has expired when everything connects again, and is renewed."""

    name = "certificate-expired"
    needs_tls = True

    async def begin(self) -> None:
        """Give the broker an old certificate, and reset all connections to it."""
        self._authority = LocalCertificateAuthority(self.cluster.folder / "tls")
        self._authority.issue("broker", hosts=HOSTS, not_before=OLD, not_after=OLD + timedelta(days=1))
        self.cluster.broker.reload()
        for link in self.cluster.broker_links.values():
            await link.cut()
            await link.heal()

    async def end(self) -> None:
        self._authority.issue("broker", hosts=HOSTS)
        self.cluster.broker.reload()


class ZooKeeperLeaderKilled(Fault):
    """The ZooKeeper server that leads the ensemble gets SIGKILL, and returns."""

    name = "zookeeper-leader-killed"
    continuing = ALL_TOPICS

    async def begin(self) -> None:
        """Kill the server; its supervisor starts it again."""
        server = await self.cluster.leading_zookeeper()
        if server.pid is None:
            raise HeadgateError("the ZooKeeper server that leads does not run")
        self.note = f"It was {server.folder.name}."
        os.kill(server.pid, signal.SIGKILL)


class QuorumLost(Fault):
    """Two of three ZooKeeper servers are stopped, among them the leader."""

    name = "zookeeper-quorum-lost"
    continuing = ALL_TOPICS

    async def begin(self) -> None:
        leading = await self.cluster.leading_zookeeper()
        other = next(server for server in self.cluster.zookeepers if server is not leading)
        self._stopped = [leading, other]
        self.note = f"They were {leading.folder.name} and {other.folder.name}."
        await asyncio.gather(*(server.stop() for server in self._stopped))

    async def end(self) -> None:
        """Start them at the same time, because one alone waits for the other."""
        await asyncio.gather(*(server.start() for server in self._stopped))
