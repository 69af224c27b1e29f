"""Read the files that the section ``[broker]`` names, and judge how well it protects a password."""

from __future__ import annotations

import ssl

from controller.settings.sections import BrokerSettings
from headgate.transport.broker_tls import broker_tls
from headgate.transport.tls_options import password_warning


def read_broker_tls(broker: BrokerSettings) -> ssl.SSLContext | None:
    """Return the context of connections to the broker; None: they are not encrypted.

    Raises:
        ConfigError: a certificate or a key is unusable; the text names setting and file.
    """
    tls = broker_tls(broker, broker.host, "$.broker.")
    return None if tls is None else tls.context()


def check_broker_files(broker: BrokerSettings) -> None:
    """Raise ConfigError if the password, a certificate or a key is unusable."""
    broker.password()
    read_broker_tls(broker)


def broker_warnings(broker: BrokerSettings) -> list[str]:
    """Return what is allowed and should not be: a password that crosses a network without TLS."""
    advice = password_warning(broker, broker.host, broker.password_file)
    return [] if advice is None else [f"$.broker.{advice}"]
