"""The instruments of a daemon, as its settings say, with the limits that alerts compare to."""

from prometheus_client import CollectorRegistry

from controller.settings.load import Settings
from metrics import events
from metrics.instruments import Instruments


def new_instruments(settings: Settings, registry: CollectorRegistry) -> Instruments:
    """Register every metric in ``registry``, and set the limits of ``settings``."""
    instruments = Instruments(registry, settings.metrics.backlog_topics, settings.metrics.max_subscriptions)
    instruments.observe(events.IngestQueueLimitSet(size_bytes=settings.ingest.queue_bytes))
    instruments.observe(events.NamedProducerLimitSet(producers=settings.ingest.max_named_producers))
    return instruments
