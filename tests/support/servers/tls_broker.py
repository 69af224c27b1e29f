"""mosquitto with TLS, whose certificates a throwaway authority signs."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from controller.local.certificates import LocalCertificateAuthority
from controller.local.embedded import EmbeddedBroker
from controller.local.supervised_process import ProcessSpec
from headgate.transport.broker_tls import BrokerTls, broker_tls
from headgate.transport.connection_options import TlsOptions
from tests.support.samples.client_configs import client_config

HOSTS: Final = ("localhost", "127.0.0.1")


class TlsBroker(EmbeddedBroker):
    """A broker whose only port uses TLS."""

    def __init__(self, folder: Path, settings: Mapping[str, str | Path] | None = None, port: int = 0) -> None:
        """``settings``: more lines of mosquitto.conf, or others, e.g. ``certfile``."""
        super().__init__(folder, port, kind="mosquitto")
        self.authority = LocalCertificateAuthority(folder / "certificates")
        files = self.authority.issue("broker", hosts=HOSTS)
        self.settings: dict[str, str | Path] = {
            "certfile": files.certificate_file,
            "keyfile": files.key_file,
            "cafile": self.authority.ca_file,
            **(settings or {}),
        }

    @property
    def tls(self) -> BrokerTls:
        """How a client without a certificate of its own connects."""
        return self.tls_of()

    def tls_of(self, user: str | None = None, *, authority: LocalCertificateAuthority | None = None) -> BrokerTls:
        """Return how ``user`` connects, with a certificate of ``authority``, by default the broker's."""
        return encrypted(self.options_of(user, authority=authority), self.host)

    def options_of(self, user: str | None = None, *, authority: LocalCertificateAuthority | None = None) -> TlsOptions:
        options = {"tls": True, "ca_file": str(self.authority.ca_file)}
        if user is not None:
            files = (authority or self.authority).issue(user, client=True)
            options |= {"certificate_file": str(files.certificate_file), "key_file": str(files.key_file)}
        return client_config(broker_host=self.host, broker_port=self.port, **options)

    async def _process_spec(self, port: int) -> ProcessSpec:
        spec = await super()._process_spec(port)
        config = self.folder / "mosquitto.conf"
        text = config.read_text()
        for name, value in self.settings.items():
            text = "".join(line for line in text.splitlines(keepends=True) if line.split()[0] != name)
            text += f"{name} {value}\n"
        config.write_text(text)
        return ProcessSpec(spec.name, spec.command, spec.log_path, lambda: _listens(port), environ=spec.environ)


def encrypted(options: TlsOptions, host: str) -> BrokerTls:
    """Return how to connect to ``host`` with ``options``, which have ``tls``."""
    tls = broker_tls(options, host, "")
    assert tls is not None
    return tls


async def _listens(port: int) -> bool:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
    return True
