"""headgate: key-ordered streams whose segments split and merge.

What a program uses: `Producer`, `Consumer` and `Admin`, each built from a `ClientConfig`, and `ExternalConsumer` for
streams that headgate does not store. They bring MQTT, Parquet and object stores along, so each is imported when it is
asked for: a module that needs only names or errors stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.client.admin import Admin
    from headgate.client.connection import Client
    from headgate.client.consumer import ConsumedRecord, Consumer
    from headgate.client.external_consumer import ExternalConsumer, GrantedSegment
    from headgate.client.producer import CloseReport, Producer, ProducerSettings
    from headgate.client.record_batch import Delivery, RecordMetadata
    from headgate.client.source_listing import ExternalLayout, read_layout, read_list_shards
    from headgate.config import ClientConfig, load_client_config
    from headgate.errors import (
        ConfigError,
        DeliveryFailedError,
        DeliveryUnknownError,
        FencedError,
        HeadgateError,
        NoLeaderError,
        ProtocolError,
        RequestRejectedError,
    )

_MODULES = {
    "Admin": "client.admin",
    "Client": "client.connection",
    "ClientConfig": "config",
    "CloseReport": "client.producer",
    "ConfigError": "errors",
    "ConsumedRecord": "client.consumer",
    "Consumer": "client.consumer",
    "Delivery": "client.record_batch",
    "ExternalConsumer": "client.external_consumer",
    "ExternalLayout": "client.source_listing",
    "FencedError": "errors",
    "GrantedSegment": "client.external_consumer",
    "HeadgateError": "errors",
    "NoLeaderError": "errors",
    "DeliveryFailedError": "errors",
    "DeliveryUnknownError": "errors",
    "Producer": "client.producer",
    "ProducerSettings": "client.producer",
    "ProtocolError": "errors",
    "RequestRejectedError": "errors",
    "RecordMetadata": "client.record_batch",
    "load_client_config": "config",
    "read_layout": "client.source_listing",
    "read_list_shards": "client.source_listing",
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
    "DeliveryFailedError",
    "DeliveryUnknownError",
    "ExternalConsumer",
    "ExternalLayout",
    "FencedError",
    "GrantedSegment",
    "HeadgateError",
    "NoLeaderError",
    "Producer",
    "ProducerSettings",
    "ProtocolError",
    "RecordMetadata",
    "RequestRejectedError",
    "load_client_config",
    "read_layout",
    "read_list_shards",
]


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    return getattr(import_module(f"headgate.{module}"), name)
