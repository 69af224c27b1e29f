"""A ZooKeeper that speaks TLS only, and requires a certificate of each client."""

import ssl
from pathlib import Path

from controller.local.certificates import LocalCertificateAuthority, ServerTls
from controller.local.embedded import EmbeddedZooKeeper


class SecureZooKeeper(EmbeddedZooKeeper):
    def __init__(self, folder: Path) -> None:
        self.authority = LocalCertificateAuthority(folder / "ca")
        self.client = self.authority.issue("daemon", client=True)
        server = self.authority.issue("zookeeper", hosts=["127.0.0.1"])
        self._files = ServerTls(server, self.authority.ca_file, self.client)
        super().__init__(folder, tls=self._files)

    def context(self) -> ssl.SSLContext:
        """Return the context of a client that the server trusts."""
        return self._files.client_context()
