"""Read the files that the section ``[zookeeper]`` names."""

from __future__ import annotations

import ssl

from controller.settings.sections import ZooKeeperSettings
from headgate.files.tls import client_context


def read_zookeeper_tls(zookeeper: ZooKeeperSettings) -> ssl.SSLContext | None:
    """Return the context of connections to ZooKeeper; None: they are not encrypted.

    Raises:
        ConfigError: a certificate or a key is unusable; the text names setting and file.
    """
    if not zookeeper.tls:
        return None
    return client_context(
        "$.zookeeper.",
        ca_file=zookeeper.ca_file,
        certificate_file=zookeeper.certificate_file,
        key_file=zookeeper.key_file,
    )


def check_zookeeper_files(zookeeper: ZooKeeperSettings) -> None:
    """Raise ConfigError if the password, a certificate or a key is unusable."""
    zookeeper.password()
    read_zookeeper_tls(zookeeper)
