"""The servers of a local cluster: whether this machine can run them, and how its daemons and clients reach them."""

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from controller.local.data_folder import FREE_MEGABYTES
from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper, find_mosquitto
from controller.local.security import LocalSecurity
from controller.settings.load import Settings
from controller.settings.sections import (
    AccessSettings,
    BrokerSettings,
    ClusterSettings,
    DrainSettings,
    HttpSettings,
    InstanceSettings,
    LedgerSettings,
    ZooKeeperSettings,
)
from drain.spark.java import find_java
from headgate.errors import ConfigError
from headgate.extras import install_extra
from headgate.settings.config import ClientConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServers:
    """ZooKeeper and a broker on this machine. They know their ports once they run, or were given reserved ones."""

    cluster: ClusterSettings
    ledger_url: str
    zookeepers: Sequence[EmbeddedZooKeeper]
    broker: EmbeddedBroker
    security: LocalSecurity | None = None
    """None: every program on this machine may connect and do everything."""

    def settings(
        self,
        *,
        instance: str,
        drain: DrainSettings,
        http_port: int,
        session_seconds: float = ZooKeeperSettings().session_timeout_seconds,
        sections: Mapping[str, msgspec.Struct] | None = None,
    ) -> Settings:
        """Return the settings of a daemon; ``sections`` replace others, except for users, secrets and certificates."""
        settings = Settings(
            cluster=self.cluster,
            instance=InstanceSettings(name=instance),
            zookeeper=ZooKeeperSettings(
                hosts=",".join(server.address for server in self.zookeepers), session_timeout_seconds=session_seconds
            ),
            broker=BrokerSettings(host=self.broker.host, port=self.broker.port),
            access=AccessSettings(open=True),
            ledger=LedgerSettings(url=self.ledger_url),
            drain=drain,
            http=HttpSettings(port=http_port),
        ).replace(**(sections or {}))
        return settings if self.security is None else self.security.secure(settings)

    def plain_client_config(self, broker_port: int | None = None) -> ClientConfig:
        """Return where clients find the cluster, without any user; ``broker_port`` may be that of a proxy."""
        return ClientConfig(
            cluster=self.cluster.name,
            broker_host=self.broker.host,
            broker_port=broker_port or self.broker.port,
            ledger_url=self.ledger_url,
        )

    def client_config(self, broker_port: int | None = None, user: str | None = None) -> ClientConfig:
        """Return the configuration of a client that is ``user``; default: a user who may do everything."""
        config = self.plain_client_config(broker_port)
        return config if self.security is None else self.security.client_config(config, user)


def require_machine(folder: Path) -> None:
    """Raise ConfigError if a node with its data in ``folder`` lacks something; the text says what supplies it."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            f"pyspark is not installed; it counts, and contains ZooKeeper: {install_extra('up', 'headgate-daemon')}"
        )
    if find_mosquitto() is None and importlib.util.find_spec("amqtt") is None:
        raise ConfigError(
            f"there is no MQTT broker: apt-get install mosquitto, or {install_extra('up', 'headgate-daemon')}"
        )
    with tempfile.TemporaryDirectory(prefix="headgate-java-") as wrappers:
        find_java(Path(wrappers))
    free = shutil.disk_usage(folder).free // 1_000_000
    if free < FREE_MEGABYTES:
        raise ConfigError(
            f"data folder {folder}: {free} MB are free, and a node needs {FREE_MEGABYTES} MB; "
            "free space, or choose another with --data"
        )
