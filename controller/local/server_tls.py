"""TLS of one embedded server: its certificate, and what a client on this machine needs to check whether it serves."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from controller.local.certificates import CertificateFiles
from headgate.files.tls import client_context


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The files of one server."""

    server: CertificateFiles
    ca_file: Path
    """The authority that signed ``server`` and ``client``."""
    client: CertificateFiles | None = None
    """A client's certificate; None: the server asks for none."""

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client that trusts only this server's authority."""
        client = self.client
        return client_context(
            ca_file=self.ca_file,
            certificate_file=None if client is None else client.certificate_file,
            key_file=None if client is None else client.key_file,
        )
