"""The demo's cluster: the servers, Spark, two daemons, one producer and the consumers.

It starts and stops processes. demo.scenario decides when.
"""

from collections.abc import Callable
from pathlib import Path

from controller.settings.sections import SubscriptionSettings
from trials.recorded_cluster import RecordedCluster

SHARDS = 2
TOPIC = "telemetry"
GRACE_SECONDS = 6.0


class DemoCluster(RecordedCluster):
    """Everything that runs during the demo. Entering starts the servers and Spark."""

    def __init__(self, folder: Path, report_step: Callable[[str], None]) -> None:
        self._report_step = report_step
        subscriptions = SubscriptionSettings(
            grace_seconds=GRACE_SECONDS, heartbeat_interval_seconds=1.5, revoke_timeout_seconds=15
        )
        super().__init__(folder, name="demo", shards=SHARDS, subscriptions=subscriptions)

    async def begin(self) -> None:
        await self.start_servers()
        self._report_step(f"ZooKeeper and {self.broker.kind} are ready; Spark starts, which may take minutes")
        await self.start_spark()
