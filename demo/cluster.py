"""The demo's cluster: the servers, Spark, two daemons, one producer and the consumers.

It starts and stops processes. demo.scenario decides when.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from controller.settings.sections import SubscriptionSettings
from trials.cluster import LocalCluster

SHARDS = 2
TOPIC = "telemetry"
GRACE_SECONDS = 6.0


class DemoCluster(LocalCluster):
    """Everything that runs during the demo. Entering starts the servers and Spark."""

    def __init__(self, folder: Path, report_step: Callable[[str], None]) -> None:
        self._report_step = report_step
        subscriptions = SubscriptionSettings(
            grace_seconds=GRACE_SECONDS, heartbeat_interval_seconds=1.5, revoke_timeout_seconds=15
        )
        super().__init__(folder, name="demo", shards=SHARDS, subscriptions=subscriptions)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self.start_servers()
            self._report_step(f"ZooKeeper and {self.broker.kind} are ready; Spark starts, which may take minutes")
            await self.start_spark()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def start_producer(self, rate: int) -> None:
        """Start the producer with ``rate`` records per second."""
        await self._start_client("producer", "demo.telemetry", "--rate", str(rate))

    async def start_consumer(self, name: str, subscription: str, kind: str) -> None:
        """Start a consumer of ``subscription``, whose type is ``kind``."""
        options = ("--name", name, "--subscription", subscription, "--type", kind)
        await self._start_client(name, "demo.consumer", *options)

    def output_path(self, name: str) -> Path:
        """Return the file in which a producer or consumer records what it saw."""
        return self.folder / f"{name}.records"

    async def _start_client(self, name: str, module: str, *options: str) -> None:
        common = ("--config", str(self.client_config_path), "--topic", TOPIC, "--out", str(self.output_path(name)))
        await self.start_program(name, "-m", module, *common, *options)
