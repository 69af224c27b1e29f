"""A ZooKeeper that speaks TLS only, and requires a certificate of each client."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from controller.local.certificates import LocalCertificateAuthority
from controller.local.embedded import EmbeddedZooKeeper
from controller.local.supervised_process import ProcessSpec
from headgate.tls import client_context


class SecureZooKeeper(EmbeddedZooKeeper):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.authority = LocalCertificateAuthority(folder / "ca")
        self.client = self.authority.issue("daemon", client=True)

    def context(self) -> ssl.SSLContext:
        """Return the context of a client that the server trusts."""
        return client_context(
            ca_file=self.authority.ca_file,
            certificate_file=self.client.certificate_file,
            key_file=self.client.key_file,
        )

    def _process_spec(self, home: Path, classpath: str, port: int) -> ProcessSpec:
        spec = super()._process_spec(home, classpath, port)
        server = self.authority.issue("zookeeper", hosts=["127.0.0.1"])
        both = self.folder / "keystore.pem"
        both.write_text(server.key_file.read_text() + server.certificate_file.read_text())
        config = Path(spec.command[-1])
        text = config.read_text().replace("clientPort", "secureClientPort")
        config.write_text(
            text
            + "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            + f"ssl.keyStore.location={both}\n"
            + f"ssl.trustStore.location={self.authority.ca_file}\n"
            + "ssl.clientAuth=need\n"
        )
        return ProcessSpec(spec.name, spec.command, spec.log_path, lambda: self._is_ready(port))

    async def _is_ready(self, port: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=self.context())
        try:
            writer.write(b"srvr")
            return b"Mode:" in await reader.read(4096)
        finally:
            writer.transport.abort()
