"""A local cluster whose broker knows its users, and whose daemons judge what they may do.

The tests and benchmarks of security run on it. One access file is the source of both layers: the daemons read it, and
the broker's list is exported from it, as deploy/ does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from controller.access.broker_rules import BrokerFormat, export
from controller.local.broker_access import BrokerAccess
from controller.local.cluster import LocalCluster
from controller.local.embedded import EmbeddedBroker
from controller.local.private_file import write_private_file
from controller.local.supervised_process import ProcessSpec
from controller.settings.load import AccessSettings, BrokerSettings
from headgate.config import ClientConfig

DAEMON_USER: Final = "headgate"


class SecuredBroker(EmbeddedBroker):
    """A mosquitto whose log names every refusal."""

    def __init__(self, folder: Path, port: int, access: BrokerAccess) -> None:
        super().__init__(folder, port, kind="mosquitto", access=access)

    @property
    def log_path(self) -> Path:
        """The broker's log."""
        return self.folder / f"{self.kind}.log"

    def _process_spec(self, port: int) -> ProcessSpec:
        spec = super()._process_spec(port)
        # mosquitto reports refused messages as "debug".
        with (self.folder / "mosquitto.conf").open("a") as config:
            config.write("log_type all\n")
        return spec


class SecuredCluster(LocalCluster):
    """A `LocalCluster` with users. Each has the password `password_of` and a file with it."""

    def __init__(self, folder: Path, *, access: str, **options: Any) -> None:
        """``access``: the text of the access file."""
        super().__init__(folder, **options)
        access_file = self.folder / "access.toml"
        access_file.write_text(access)
        settings = AccessSettings(file=str(access_file))
        rules = settings.rules()
        users = (*rules.users, DAEMON_USER)
        for user in users:
            write_private_file(self.password_path(user), f"{self.password_of(user)}\n")
        broker_access = BrokerAccess(self.folder / "users", self.folder / "access.acl")
        acl = export(rules, BrokerFormat.ACL_FILE, cluster=self.name, daemon_user=DAEMON_USER)
        broker_access.write({user: self.password_of(user) for user in users}, acl)
        self.broker: SecuredBroker = SecuredBroker(self.folder / "broker", self.broker.port, broker_access)
        self.sections |= {
            "access": settings,
            "broker": BrokerSettings(
                host=self.broker.host,
                port=self.broker.port,
                username=DAEMON_USER,
                password_file=str(self.password_path(DAEMON_USER)),
            ),
        }

    @staticmethod
    def password_of(user: str) -> str:
        """Return the password of ``user``."""
        return f"secret of {user}"

    def password_path(self, user: str) -> Path:
        """Return the path of the file with the password of ``user``."""
        return self.folder / f"{user}.password"

    def config_of(self, user: str) -> ClientConfig:
        """Return the client configuration of ``user``."""
        return self.as_user(user, self.client_config())

    def as_user(self, user: str, config: ClientConfig) -> ClientConfig:
        """Return ``config`` with the name and password of ``user``."""
        return msgspec.structs.replace(config, username=user, password_file=str(self.password_path(user)))
