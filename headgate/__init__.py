"""headgate: key-ordered streams whose segments split and merge.

A program uses `Producer`, `Consumer` and `Admin`, each built from a `ClientConfig`, and
`ExternalConsumer` for streams that headgate does not store. They are coroutines; `headgate.sync`
offers the first three to programs without an event loop. `dataset` returns a topic as Arrow data.

Importing this package is cheap. Each name is imported on first use, because the clients need MQTT,
Parquet and object stores, and a module that needs only errors does not. It imports nothing itself: until it is done, a
command prints a traceback for Ctrl-C.
"""

TYPE_CHECKING = False
"""True for type checkers, as that of `typing`."""

if TYPE_CHECKING:
    from headgate.client.admin import Admin as Admin, TopicSetting as TopicSetting
    from headgate.client.client_metrics import ConsumerMetrics as ConsumerMetrics, ProducerMetrics as ProducerMetrics
    from headgate.client.connection import Client as Client
    from headgate.client.consumer import ConsumedRecord as ConsumedRecord, Consumer as Consumer
    from headgate.client.external_consumer import ExternalConsumer as ExternalConsumer, GrantedSegment as GrantedSegment
    from headgate.client.interceptors import Interceptor as Interceptor, OutgoingRecord as OutgoingRecord
    from headgate.client.processing.schedule import (
        BatchPolicy as BatchPolicy,
        LastAction as LastAction,
        LookAhead as LookAhead,
        RetryPolicy as RetryPolicy,
    )
    from headgate.client.processing.runner import RunReport as RunReport
    from headgate.client.producer import Producer as Producer
    from headgate.client.producing.producer_settings import ProducerSettings as ProducerSettings
    from headgate.client.producing.record_batch import (
        Deliveries as Deliveries,
        Delivery as Delivery,
        RecordMetadata as RecordMetadata,
    )
    from headgate.client.source_listing import (
        ExternalLayout as ExternalLayout,
        read_layout as read_layout,
        read_list_shards as read_list_shards,
    )
    from headgate.errors import (
        AcknowledgementsNotStoredError as AcknowledgementsNotStoredError,
        CommandUnknownError as CommandUnknownError,
        ConfigError as ConfigError,
        DeliveryFailedError as DeliveryFailedError,
        DeliveryUnknownError as DeliveryUnknownError,
        FencedError as FencedError,
        ForgottenError as ForgottenError,
        HandlerFailedError as HandlerFailedError,
        HeadgateError as HeadgateError,
        NoLeaderError as NoLeaderError,
        OtherHistoryError as OtherHistoryError,
        PositionOutOfRangeError as PositionOutOfRangeError,
        ProtocolError as ProtocolError,
        RequestRejectedError as RequestRejectedError,
    )
    from headgate.model.layout import BucketRange as BucketRange
    from headgate.model.entries import (
        DeliveryPolicy as DeliveryPolicy,
        SubscriptionType as SubscriptionType,
        TopicPolicy as TopicPolicy,
    )
    from headgate.model.identifiers import Generation as Generation, Offset as Offset, SegmentId as SegmentId
    from headgate.settings.config import ClientConfig as ClientConfig, load_client_config as load_client_config
    from headgate.topic_dataset import Dataset as Dataset, dataset as dataset
    from headgate.views.subscriptions import BacklogInfo as BacklogInfo, SegmentBacklogInfo as SegmentBacklogInfo
    from headgate.views.cluster import (
        ClusterInfo as ClusterInfo,
        ClusterTotals as ClusterTotals,
        ComponentInfo as ComponentInfo,
        DaemonInfo as DaemonInfo,
        FeatureLevel as FeatureLevel,
        ShardInfo as ShardInfo,
        SubscriptionSummary as SubscriptionSummary,
    )
    from headgate.views.explanations import (
        BlockingSegment as BlockingSegment,
        ConsumerReasons as ConsumerReasons,
        ConsumerSegmentCount as ConsumerSegmentCount,
        Explanation as Explanation,
        Plan as Plan,
        ProposedMove as ProposedMove,
        ProposedSegment as ProposedSegment,
        SegmentReasons as SegmentReasons,
    )
    from headgate.views.topics import ProducerInfo as ProducerInfo, TopicPosition as TopicPosition
    from headgate.views.subscriptions import (
        BucketRangeAssignment as BucketRangeAssignment,
        ConsumerInfo as ConsumerInfo,
        HeldBucketRange as HeldBucketRange,
        ParkedKeyInfo as ParkedKeyInfo,
        SeekResult as SeekResult,
        SegmentAssignment as SegmentAssignment,
        SegmentSeek as SegmentSeek,
        SubscriptionInfo as SubscriptionInfo,
    )
    from headgate.views.topics import (
        ExternalSource as ExternalSource,
        PruneResult as PruneResult,
        SegmentInfo as SegmentInfo,
        TopicImportResult as TopicImportResult,
        TopicInfo as TopicInfo,
        UnprunedSegment as UnprunedSegment,
    )

# Hidden from type checkers: they would accept every name that is imported from here.
if not TYPE_CHECKING:
    _MODULES = {}

    def _exported() -> dict[str, str]:
        """Return name → module. The imports above are the only list of them. They never run, so they are read."""
        if not _MODULES:
            import re  # noqa: PLC0415

            source = __spec__.loader.get_source(__name__)
            imports = re.findall(r"^    from (\S+) import (\([^)]*\)|.*)$", source, re.MULTILINE)
            _MODULES.update({name: module for module, names in imports for name in re.findall(r"as (\w+)", names)})
        return _MODULES

    def __getattr__(name: str) -> object:
        """Import an exported name on first use."""
        if name == "__all__":
            return list(_exported())
        if name.startswith("__") or (module := _exported().get(name)) is None:
            raise AttributeError(f"module 'headgate' has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(module), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_exported()})
