"""Metrics of clients for a Prometheus registry of the program: the extra ``prometheus``.

REGISTRY.register(ClientCollector({"orders": producer, "billing": consumer}))
"""

from collections.abc import Iterator, Mapping

from headgate.client.client_metrics import PREFIXES, Measured, described
from headgate.extras import install_extra

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        f"headgate.prometheus needs prometheus-client: {install_extra('prometheus')}", name=error.name
    ) from None


class ClientCollector(Collector):
    """The metrics of some producers and consumers, ``headgate_producer_…`` and ``headgate_consumer_…``."""

    def __init__(self, clients: Mapping[str, Measured]) -> None:
        """``clients``: value of the label ``client`` → the producer or consumer; the mapping may change."""
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        values = [(name, client.metrics()) for name, client in list(self._clients.items())]
        for kind, name, metric in described():
            create = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = create(f"headgate_{PREFIXES[kind]}_{name}", f"{metric.text}.", labels=["client"])
            for client, each in values:
                if isinstance(each, kind):
                    family.add_metric([client], getattr(each, name))
            yield family
