"""headgate: key-ordered streams whose segments split and merge.

What a program uses: `Producer`, `Consumer` and `Admin`, each built from a `ClientConfig`, and `ExternalConsumer` for
streams that headgate does not store. They bring MQTT, Parquet and object stores along, so each is imported when it is
asked for: a module that needs only names or errors stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.admin import Admin
    from headgate.client import Client
    from headgate.config import ClientConfig, load_client_config
    from headgate.consumer import ConsumedRecord, Consumer
    from headgate.errors import (
        ConfigError,
        FencedError,
        HeadgateError,
        NoLeaderError,
        NotStoredError,
        OutcomeUnknownToProducerError,
        ProtocolError,
        RefusedError,
    )
    from headgate.external_consumer import ExternalConsumer, GrantedSegment
    from headgate.external_layout import ExternalLayout, read_layout, read_list_shards
    from headgate.producer import CloseReport, Producer, ProducerSettings
    from headgate.record_batch import Delivery, Stored

_PLACES = {
    "Admin": "admin",
    "Client": "client",
    "ClientConfig": "config",
    "CloseReport": "producer",
    "ConfigError": "errors",
    "ConsumedRecord": "consumer",
    "Consumer": "consumer",
    "Delivery": "record_batch",
    "ExternalConsumer": "external_consumer",
    "ExternalLayout": "external_layout",
    "FencedError": "errors",
    "GrantedSegment": "external_consumer",
    "HeadgateError": "errors",
    "NoLeaderError": "errors",
    "NotStoredError": "errors",
    "OutcomeUnknownToProducerError": "errors",
    "Producer": "producer",
    "ProducerSettings": "producer",
    "ProtocolError": "errors",
    "RefusedError": "errors",
    "Stored": "record_batch",
    "load_client_config": "config",
    "read_layout": "external_layout",
    "read_list_shards": "external_layout",
}

__all__ = [
    "Admin",
    "Client",
    "ClientConfig",
    "CloseReport",
    "ConfigError",
    "ConsumedRecord",
    "Consumer",
    "Delivery",
    "ExternalConsumer",
    "ExternalLayout",
    "FencedError",
    "GrantedSegment",
    "HeadgateError",
    "NoLeaderError",
    "NotStoredError",
    "OutcomeUnknownToProducerError",
    "Producer",
    "ProducerSettings",
    "ProtocolError",
    "RefusedError",
    "Stored",
    "load_client_config",
    "read_layout",
    "read_list_shards",
]


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    return getattr(import_module(f"headgate.{place}"), name)
