"""The health that tests of the probes and of the server show."""

from metrics.health import HealthFacts

HEALTHY_FACTS = HealthFacts(
    tick_age_seconds=0.1,
    zookeeper="connected",
    broker_connected=True,
    drain="ready",
    drain_reason="",
    shards=4,
    shards_led=2,
)
