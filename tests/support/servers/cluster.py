"""A local cluster for the system tests: client commands, health of daemons, and the ledger's content.

Without Spark, because these tests do not wait for drains.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from controller.local.broker_access import BrokerAccess
from controller.local.certificates import ServerTls
from controller.local.embedded import EmbeddedBroker
from controller.local.supervised_process import ProcessSpec
from controller.settings.sections import ZooKeeperSettings
from headgate.files.named_file import read_secret
from headgate.ledger.identity import read_ledger_id
from headgate.settings.config import ClientConfig
from headgate.storage.object_store import open_store
from tests.support.samples.chunks import record_rows
from tests.support.servers.programs import (
    TIMEOUT_FACTOR,
    ClientCommands,
    HttpAddress,
    fork,
    health,
    metric,
    wait_until,
    whole_lines,
)
from trials.cluster import LocalCluster, LocalDaemon

SESSION_SECONDS = 4.0
"""Short, because a test that kills a leader waits for it. Twice the minimum, because on a busy machine only daemons that
were frozen or killed may lose their session.
"""
SHARDS = 2


ONE_USER_OF_EACH_ROLE = """
[[users.operator]]
role = "administrator"
[[users.shop]]
role = "producer"
topics = ["orders"]
[[users.billing]]
role = "consumer"
topics = ["orders"]
subscriptions = ["billing"]
[[users.gateway]]
role = "device"
topics = ["orders"]
[[users.grafana]]
role = "observer"
"""
"""The beginning of an access file."""


class Daemon(LocalDaemon):
    """A daemon that a test observes."""

    @property
    def http_address(self) -> HttpAddress:
        """``host:port`` of its metrics and health, and what it takes to read them."""
        return HttpAddress(super().http_address, self.settings)

    async def leads(self) -> int:
        """Return the number of shards that it leads; 0 if it does not answer."""
        return int(await metric(self.http_address, "headgate_shard_is_leader"))

    async def health(self) -> tuple[int, dict[str, Any]]:
        """Return status and report of /readyz."""
        return await health(self.http_address)

    async def reports(self, status: int, component: str, state: str) -> bool:
        """Whether /readyz answers with ``status`` and reports ``component`` in ``state``."""
        found, report = await self.health()
        components = report.get("components", {})  # empty while it does not listen yet
        return found == status and components.get(component, {}).get("state") == state

    async def until_leading(self, shards: int | None = None, seconds: float = 30.0) -> None:
        """Wait until it leads ``shards`` shards; default: all."""
        expected = self.settings.cluster.shards if shards is None else shards

        async def reached() -> bool:
            return await self.leads() == expected

        await wait_until(reached, lambda: f"it leads {expected} shards: {self.log()[-2000:]}", seconds)

    async def ended(self, seconds: float = 20.0) -> int:
        """Wait for it to end; return its exit code."""
        async with asyncio.timeout(seconds * TIMEOUT_FACTOR):
            return await self.process.wait()

    def log(self) -> str:
        return self.process.log_path.read_text()

    def log_entries(self, event: str) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in whole_lines(self.process.log_path) if line.startswith("{") and event in line
        ]


class Cluster(LocalCluster):
    """One cluster; entering starts nothing, leaving kills everything."""

    tls_by_default = False
    """Set for all tests of a file by tests/system/conftest.py."""
    daemons: dict[str, Daemon]  # type: ignore[assignment]

    def __init__(
        self,
        folder: Path,
        session_seconds: float = SESSION_SECONDS,
        *,
        name: str = "test",
        shards: int = SHARDS,
        **options: Any,
    ) -> None:
        tls = options.pop("tls", self.tls_by_default)
        super().__init__(folder, name=name, shards=shards, session_seconds=session_seconds, tls=tls, **options)
        self.commands = ClientCommands(folder, self.client_config_path, self.environ)
        self._record_counts: list[list[int]] = [[] for _ in range(shards)]

    async def __aexit__(self, *_: object) -> None:
        await self.commands.kill_all()
        await super().__aexit__()

    async def start_daemon(self, name: str) -> Daemon:
        settings = self.settings(name)
        if self.daemon_environ(name):  # It may change what is imported.
            await super().start_daemon(name)
        else:
            config = str(self.write_settings(settings))
            self.programs[name] = await fork("run", "--config", config, out=self.log_path(name))
        daemon = self.daemons[name] = Daemon(self.programs[name], settings)
        return daemon

    async def start_leader(self, name: str = "only") -> Daemon:
        """Start the servers, and a daemon, which leads every shard then."""
        await self.start_servers()
        daemon = await self.start_daemon(name)
        await daemon.until_leading()
        return daemon

    def daemon_client_config(self) -> ClientConfig:
        """Return the configuration of a client with the rights of the daemons, who may read what no client may."""
        broker = self.settings("any").broker
        return msgspec.structs.replace(
            self.client_config(), username=broker.username, password_file=broker.password_file
        )

    async def leader(self) -> str:
        """Return the name of the running daemon that leads every shard, once there is one."""

        async def find() -> str | None:
            for name, daemon in self.daemons.items():
                if await daemon.leads() == self.shards:
                    return name
            return None

        return await wait_until(find, "one daemon leads every shard", 30)

    async def ledger_id(self) -> bytes:
        return bytes.fromhex(await read_ledger_id(open_store(self.ledger_url), "") or "")

    async def record_rows(self, shard: int = 0) -> list[dict[str, Any]]:
        """Return every record of a shard as a row, in the order of its ledger."""
        ledger = self.ledger(shard)
        rows: list[dict[str, Any]] = []
        for number in range(1, await ledger.newest() + 1):
            rows += record_rows((await ledger.read_records(number))[1])
        return rows

    async def stored(self) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of every record of every shard, in the order of its ledger."""
        return [(row["key"], row["value"]) for shard in range(self.shards) for row in await self.record_rows(shard)]

    async def stored_count(self) -> int:
        """Return the number of stored records. Fast: chunks never change, so each is counted once."""
        for shard, counts in enumerate(self._record_counts):
            ledger = self.ledger(shard)
            for number in range(len(counts) + 1, await ledger.newest() + 1):
                counts.append((await ledger.header(number)).records)
        return sum(map(sum, self._record_counts))


class SecuredBroker(EmbeddedBroker):
    """A mosquitto whose log names every refusal."""

    def __init__(self, folder: Path, port: int, tls: ServerTls | None, access: BrokerAccess) -> None:
        super().__init__(folder, port, kind="mosquitto", tls=tls, access=access)

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.kind}.log"

    async def _process_spec(self, port: int) -> ProcessSpec:
        spec = await super()._process_spec(port)
        # mosquitto reports refused messages as "debug".
        with (self.folder / "mosquitto.conf").open("a") as config:
            config.write("log_type all\n")
        return spec


class SecuredTestCluster(Cluster):
    """A cluster whose broker knows its users, those of an access file, and whose daemons judge what they may do."""

    def __init__(self, folder: Path, *, access: str, **options: Any) -> None:
        """``access``: the text of the access file."""
        super().__init__(folder, access=access, **options)
        assert self.security is not None, "there is an access file"
        self.users = self.security
        self.broker: SecuredBroker = SecuredBroker(
            self.folder / "broker", self.broker.port, self.users.broker_tls(), self.users.broker_access
        )

    def password_of(self, user: str) -> str:
        """Return the password of ``user``. Raises ConfigError."""
        return read_secret(self.users.password_file(user), "password")

    def config_of(self, user: str) -> ClientConfig:
        return self.client_config(user=user)


def _kazoo_options(settings: ZooKeeperSettings) -> dict[str, Any]:
    if settings.username is None:
        return {}
    user, password = settings.username, settings.password()
    return {
        "use_ssl": settings.tls,
        "ca": settings.ca_file,
        "certfile": settings.certificate_file,
        "keyfile": settings.key_file,
        "auth_data": [("digest", f"{user}:{password}")],
        "default_acl": [make_digest_acl(user, password, all=True)],
    }


@contextmanager
def zookeeper_client(cluster: Cluster) -> Iterator[KazooClient]:
    """Return a session of another program at the cluster's ZooKeeper, as trusted as a daemon."""
    client = KazooClient(cluster.zookeeper.address, **_kazoo_options(cluster.settings("other").zookeeper))
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()
