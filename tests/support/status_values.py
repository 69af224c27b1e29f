"""The health and the segments that tests of the status page, the drawings and the probes show."""

from __future__ import annotations

from headgate.model.layout import Layout
from headgate.protocol.messages import SegmentDescription
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


def segment_descriptions(layout: Layout) -> list[SegmentDescription]:
    """Return the segments of ``layout`` as a leader describes them."""
    return [
        SegmentDescription(
            segment=each.segment_id,
            first_hash=each.first_hash,
            last_hash=each.last_hash,
            state=each.state.value,
            parents=list(each.parents),
            children=list(each.children),
            next_offset=each.end_offset or 0,
            size_bytes=0,
            created_at_ms=0,
        )
        for each in layout.segments.values()
    ]
