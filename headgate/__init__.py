"""headgate: key-ordered streams whose segments split and merge.

A program uses `Producer`, `Consumer` and `Admin`, each built from a `ClientConfig`, and
`ExternalConsumer` for streams that headgate does not store. They are coroutines; `headgate.sync`
offers the first three to programs without an event loop.

Importing this package is cheap. Each name is imported on first use, because the clients need MQTT,
Parquet and object stores, and a module that needs only errors does not.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.client.admin import Admin
    from headgate.client.connection import Client
    from headgate.client.consumer import ConsumedRecord, Consumer
    from headgate.client.external_consumer import ExternalConsumer, GrantedSegment
    from headgate.client.producer import CloseReport, Producer
    from headgate.client.producer_settings import ProducerSettings
    from headgate.client.record_batch import Delivery, RecordMetadata
    from headgate.client.source_listing import ExternalLayout, read_layout, read_list_shards
    from headgate.errors import (
        AcknowledgementsNotStoredError,
        CommandUnknownError,
        ConfigError,
        DeliveryFailedError,
        DeliveryUnknownError,
        FencedError,
        ForgottenError,
        HeadgateError,
        NoLeaderError,
        OtherHistoryError,
        PositionOutOfRangeError,
        ProtocolError,
        RequestRejectedError,
    )
    from headgate.model.entries import SubscriptionType, TopicPolicy
    from headgate.model.identifiers import Generation, Offset, SegmentId
    from headgate.settings.config import ClientConfig, load_client_config
    from headgate.views.backlogs import BacklogInfo, SegmentBacklogInfo
    from headgate.views.cluster import (
        ClusterInfo,
        ClusterTotals,
        ComponentInfo,
        DaemonInfo,
        ShardInfo,
        SubscriptionSummary,
    )
    from headgate.views.explanations import (
        BlockingSegment,
        ConsumerReasons,
        ConsumerSegmentCount,
        Explanation,
        Plan,
        ProposedMove,
        ProposedSegment,
        SegmentReasons,
    )
    from headgate.views.producers import ProducerInfo, TopicPosition
    from headgate.views.subscriptions import (
        BucketRangeAssignment,
        ConsumerInfo,
        HeldBucketRange,
        SeekResult,
        SegmentAssignment,
        SegmentSeek,
        SubscriptionInfo,
    )
    from headgate.views.topics import (
        ExternalSource,
        PruneResult,
        SegmentInfo,
        TopicImportResult,
        TopicInfo,
        UnprunedSegment,
    )

_EXPORTS = {
    "client.admin": ("Admin",),
    "client.connection": ("Client",),
    "client.consumer": ("ConsumedRecord", "Consumer"),
    "client.external_consumer": ("ExternalConsumer", "GrantedSegment"),
    "client.producer": ("CloseReport", "Producer"),
    "client.producer_settings": ("ProducerSettings",),
    "client.record_batch": ("Delivery", "RecordMetadata"),
    "client.source_listing": ("ExternalLayout", "read_layout", "read_list_shards"),
    "settings.config": ("ClientConfig", "load_client_config"),
    "errors": (
        "AcknowledgementsNotStoredError",
        "CommandUnknownError",
        "ConfigError",
        "DeliveryFailedError",
        "DeliveryUnknownError",
        "FencedError",
        "ForgottenError",
        "HeadgateError",
        "NoLeaderError",
        "OtherHistoryError",
        "OtherHistoryError",
        "PositionOutOfRangeError",
        "ProtocolError",
        "RequestRejectedError",
    ),
    "model.entries": ("SubscriptionType", "TopicPolicy"),
    "model.identifiers": ("Generation", "Offset", "SegmentId"),
    "views.backlogs": (
        "BacklogInfo",
        "SegmentBacklogInfo",
    ),
    "views.cluster": (
        "ClusterInfo",
        "ClusterTotals",
        "ComponentInfo",
        "DaemonInfo",
        "ShardInfo",
        "SubscriptionSummary",
    ),
    "views.explanations": (
        "BlockingSegment",
        "ConsumerReasons",
        "ConsumerSegmentCount",
        "Explanation",
        "Plan",
        "ProposedMove",
        "ProposedSegment",
        "SegmentReasons",
    ),
    "views.producers": ("ProducerInfo", "TopicPosition"),
    "views.subscriptions": (
        "BucketRangeAssignment",
        "ConsumerInfo",
        "HeldBucketRange",
        "SeekResult",
        "SegmentAssignment",
        "SegmentSeek",
        "SubscriptionInfo",
    ),
    "views.topics": (
        "ExternalSource",
        "PruneResult",
        "SegmentInfo",
        "TopicImportResult",
        "TopicInfo",
        "UnprunedSegment",
    ),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "AcknowledgementsNotStoredError",
    "Admin",
    "BacklogInfo",
    "BlockingSegment",
    "BucketRangeAssignment",
    "Client",
    "ClientConfig",
    "CloseReport",
    "ClusterInfo",
    "ClusterTotals",
    "CommandUnknownError",
    "ComponentInfo",
    "ConfigError",
    "ConsumedRecord",
    "Consumer",
    "ConsumerInfo",
    "ConsumerReasons",
    "ConsumerSegmentCount",
    "DaemonInfo",
    "Delivery",
    "DeliveryFailedError",
    "DeliveryUnknownError",
    "Explanation",
    "ExternalConsumer",
    "ExternalLayout",
    "ExternalSource",
    "FencedError",
    "ForgottenError",
    "Generation",
    "GrantedSegment",
    "HeadgateError",
    "HeldBucketRange",
    "NoLeaderError",
    "Offset",
    "OtherHistoryError",
    "Plan",
    "PositionOutOfRangeError",
    "Producer",
    "ProducerInfo",
    "ProducerSettings",
    "ProposedMove",
    "ProposedSegment",
    "ProtocolError",
    "PruneResult",
    "RecordMetadata",
    "RequestRejectedError",
    "SeekResult",
    "SegmentAssignment",
    "SegmentBacklogInfo",
    "SegmentId",
    "SegmentInfo",
    "SegmentReasons",
    "SegmentSeek",
    "ShardInfo",
    "SubscriptionInfo",
    "SubscriptionSummary",
    "SubscriptionType",
    "TopicImportResult",
    "TopicInfo",
    "TopicPolicy",
    "TopicPosition",
    "UnprunedSegment",
    "load_client_config",
    "read_layout",
    "read_list_shards",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())

# Hidden from type checkers: they would accept every name that is imported from here.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import an exported name on first use."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'headgate' has no attribute {name!r}")
        return getattr(import_module(f"headgate.{module}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
