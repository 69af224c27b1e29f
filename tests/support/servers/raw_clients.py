"""Connections to the broker for tests that send what no client library would send, or watch what it sends."""

from typing import Any

from headgate.client.connection import Client
from headgate.settings.config import ClientConfig
from headgate.transport.mqtt import MqttTransport


def raw_transport(config: ClientConfig, client_id: str, *, announced: bool = False, **options: Any) -> MqttTransport:
    """Return a connection with the user, password and certificates of ``config``, not yet entered.

    ``announced``: the broker reports its end, as it does for clients of the library.
    """
    return MqttTransport(
        config.broker_host,
        config.broker_port,
        client_id,
        will=Client.will(config.cluster, client_id, config.username) if announced else None,
        username=config.username,
        password=config.password(),
        tls=config.broker_tls(),
        **options,
    )


def raw_client(config: ClientConfig, client_id: str, **options: Any) -> Client:
    """Return a client with a connection of its own; not yet entered, without a store."""
    return Client(
        transport=raw_transport(config, client_id, announced=True),
        store=None,
        cluster=config.cluster,
        client_id=client_id,
        user=config.username,
        **options,
    )
