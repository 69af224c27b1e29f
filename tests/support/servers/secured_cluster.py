"""A local cluster with users of its own, and a broker whose log names every refusal."""

from pathlib import Path
from typing import Any

from controller.local.broker_access import BrokerAccess
from controller.local.certificates import ServerTls
from controller.local.embedded import EmbeddedBroker
from controller.local.supervised_process import ProcessSpec
from headgate.files.named_file import read_secret
from headgate.settings.config import ClientConfig
from trials.cluster import LocalCluster


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


class SecuredCluster(LocalCluster):
    """A `LocalCluster` whose users are those of an access file."""

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
