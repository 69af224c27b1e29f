"""The settings of a simulated cluster: those that its scale has, or, with the plan's program ``settings``, drawn ones.

`RANGES` are parts of the documented ranges: beyond them a run would last for days, or nothing would be done twice in it.
"""

import dataclasses
import math
import random
from typing import Any, Final, TypeVar

import msgspec

from controller.settings.sections import IngestSettings, RetentionSettings, ScalingSettings
from coordinator.context import CoordinatorSettings
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.protocol.codec import MAX_MESSAGE_BYTES
from shard.access.quotas import Limits
from tests.simulation.leadership_checker import UNREACHABLE_SECONDS
from tests.simulation.plan import Plan

RANGES: Final[dict[str, tuple[float, float]]] = {
    # Coordinators
    "grace_seconds": (1, 60),
    "revoke_timeout_seconds": (1, 30),
    "heartbeat_interval_seconds": (0.5, 10),
    "poll_min_seconds": (0.1, 5),
    "poll_max_seconds": (5, 120),
    "poll_check_timeout_seconds": (5, 60),
    "load_sample_interval_seconds": (1, 20),
    "weight_change_interval_seconds": (1, 60),
    # Ingestion
    "queue_bytes": (MAX_MESSAGE_BYTES, 64 * 1024 * 1024),
    "commit_interval_ms": (1, 1000),
    "write_timeout_seconds": (1, 20),
    "unreachable_seconds": (5, 30),
    "producer_idle_seconds": (60, 600),
    # Scaling, in worlds that scale
    "max_segments": (2, 12),
    "split_records_per_second": (1, 20),
    "split_bytes_per_second": (5, 500),
    "split_window_seconds": (10, 60),
    "merge_window_seconds": (10, 120),
    "segment_cooldown_seconds": (0.1, 60),
    "topic_cooldown_seconds": (0.1, 30),
    "merge_cooldown_seconds": (0.1, 120),
    # Retention, in worlds that prune
    "max_age_seconds": (1, 1000),
    "max_bytes": (2000, 50_000),
    "checkpoint_retention_seconds": (0.1, 60),
    "delete_delay_seconds": (0.1, 60),
    # Quotas
    "segments": (6, 30),
    "requests_per_second": (8, 50),
    "bytes_per_second": (2000, 20_000),
    # Producers
    "linger_seconds": (0.001, 1),
    "batch_bytes": (100, 64 * 1024),
    "max_in_flight": (1, 16),
    "request_timeout_seconds": (0.5, 10),
    "delivery_timeout_seconds": (30, 300),
}
"""Setting → lowest and highest value. Values are drawn evenly over the logarithm."""
HURRIED: Final = CoordinatorSettings(
    grace_seconds=12,
    revoke_timeout_seconds=8,
    heartbeat_interval_seconds=2,
    poll_min_seconds=1,
    poll_max_seconds=30,
    poll_check_timeout_seconds=10,
    # A run lasts about two minutes, and weights must change within it.
    load_sample_interval_seconds=1,
    weight_change_interval_seconds=5,
)
UNHURRIED: Final = CoordinatorSettings(
    grace_seconds=30,
    revoke_timeout_seconds=15,
    heartbeat_interval_seconds=5,
    poll_min_seconds=2,
    poll_max_seconds=60,
    poll_check_timeout_seconds=20,
    load_sample_interval_seconds=10,
    weight_change_interval_seconds=30,
)
"""Nearer to the defaults of a daemon: several virtual minutes cost what a hurried one costs."""
SCALING: Final = ScalingSettings(
    split=True,
    merge=True,
    min_segments=1,
    max_segments=6,
    split_records_per_second=4,
    split_window_seconds=10,
    merge_window_seconds=20,
    segment_cooldown_seconds=10,
    topic_cooldown_seconds=5,
    merge_cooldown_seconds=20,
)
RETENTION: Final = RetentionSettings(max_age_seconds=5, checkpoint_retention_seconds=5, delete_delay_seconds=5)
INGEST: Final = IngestSettings(unreachable_seconds=UNREACHABLE_SECONDS, write_timeout_seconds=5)
PRODUCER: Final = ProducerSettings(linger_seconds=0.01, request_timeout_seconds=2, delivery_timeout_seconds=120)

LIMITS: Final = Limits(segments=8, requests_per_second=8, bytes_per_second=2000)
"""All clients together may have and send less than they want to."""

SettingsT = TypeVar("SettingsT")


class WorldSettings:
    """The settings of one world. Clusters with odd seeds also split, merge and prune automatically."""

    def __init__(self, plan: Plan) -> None:
        rng = plan.rng("settings") if "settings" in plan.programs else None
        self.subscriptions = _drawn(HURRIED if plan.scale.hurried else UNHURRIED, rng)
        self.ingest = _drawn(INGEST, rng)
        self.scaling, self.retention = ScalingSettings(), RetentionSettings()
        if plan.seed % 2:
            self.scaling, self.retention = _drawn(SCALING, rng), _drawn(RETENTION, rng)
        self.producer = _drawn(PRODUCER, rng)
        self.limits = _drawn(LIMITS, rng)


def _drawn(settings: SettingsT, rng: random.Random | None) -> SettingsT:
    """Return ``settings`` with other values of those in `RANGES`; unchanged without ``rng``."""
    if rng is None:
        return settings
    of_struct = isinstance(settings, msgspec.Struct)
    names = settings.__struct_fields__ if of_struct else [each.name for each in dataclasses.fields(settings)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name in names:
        if name in RANGES:
            low, high = (math.log(bound) for bound in RANGES[name])
            value = math.exp(rng.uniform(low, high))
            values[name] = value if name.endswith("_seconds") or "_per_" in name else round(value)
    if of_struct:
        return msgspec.convert(msgspec.to_builtins(settings) | values, type(settings))
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]
