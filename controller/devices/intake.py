"""Stores what MQTT devices publish, for the topics see `headgate.protocol.mqtt_topics.parse_publish_address`.

Each message takes the route of a batch without a producer id. The broker delivers unacknowledged
messages to the next leader: at least once, in the broker's order. Duplicates are not detected: MQTT
has no identifier for that.

1. No message is acknowledged before the chunk that contains it is durable.
2. A message that cannot be stored (empty key, too large, a copy of a retained message) is counted,
   logged at a limited rate, and acknowledged, so that it is not delivered again. So is a message
   for a topic that does not exist, which no session receives: see
   controller.devices.unknown_topics.
3. A successor of this leader may have created an unknown topic: such a message is acknowledged only
   after a barrier. The filter that matched it is removed.
4. The leader calls `accept` only while the term serves: later messages are for the next leader.
   Messages that arrive while devices are being disabled are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from controller.chunk_writer.group_commit import GroupCommit
from controller.devices.confirmations import Confirmations
from controller.devices.session_port import Delivery
from controller.devices.subscriptions import DeviceSubscriptions
from controller.leadership.policy.shard_load import message_cost
from headgate.protocol import messages as m
from metrics import events
from metrics.label_values import DeviceRejectionReason
from shard.requests.placement import route_batch
from shard.state.shard_state import ShardState

REJECTION_LOG_INTERVAL_SECONDS = 60.0
"""Between two log lines for one rejection reason and topic."""
MAX_LOGGED_TOPIC_CHARS = 200
"""Length limit of an MQTT topic in a log line."""
MAX_LOGGED_REJECTIONS = 100
"""Topics that have log lines of their own in one term. All others share one per reason."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _LoggedRejection:
    """When a rejection was logged last, and how many like it were not logged since."""

    at_seconds: float
    suppressed: int = 0


class DeviceIntake:
    """Stores the messages of MQTT devices for one shard during one term."""

    def __init__(
        self,
        *,
        cluster: str,
        state: ShardState,
        commit: GroupCommit,
        observer: events.Observer,
        confirmations: Confirmations,
        now_ms: Callable[[], int],
        enabled: bool = True,
    ) -> None:
        self.subscriptions = DeviceSubscriptions(
            cluster=cluster, state=state, commit=commit, observer=observer, enabled=enabled
        )
        self.arrived_cost = 0
        """Sum of `message_cost` of the messages of this term."""
        self._cluster = cluster
        self._state = state
        self._commit = commit
        self._observer = observer
        self._confirmations = confirmations
        self._now_ms = now_ms
        self._pending_records = 0
        self._logged_rejections: dict[tuple[str, str], _LoggedRejection] = {}

    def accept(self, delivery: Delivery) -> None:
        """Store one message, or discard it with a reason; acknowledge it when the outcome is durable."""
        if delivery.topic == self.subscriptions.sentinel_topic:
            self.subscriptions.on_sentinel(delivery)
            return
        self.arrived_cost += message_cost(len(delivery.payload))
        name, text, _ = m.parse_publish_address(self._cluster, delivery.topic)
        key = text.encode()
        topic = self._state.topics.get(name)
        if topic is None:
            self._unknown_topic(name, delivery)
        elif topic.external is not None:
            self._discard("external_topic", delivery)
        elif delivery.retained:
            self._discard("retained", delivery)
        elif not key:
            self._discard("empty_key", delivery)
        elif len(key) + len(delivery.payload) > m.MAX_RECORD_BYTES:
            self._discard("too_large", delivery)
        else:
            record = m.Record(key, delivery.payload, self._now_ms())
            batch = m.ProduceBatch(topic=name, records=[record])
            self._commit.propose_records(*route_batch(topic, batch))
            self._set_pending(self._pending_records + 1)
            self._commit.when_durable(self._commit.newest, partial(self._stored, delivery))

    def note_publication(self, name: str, mqtt_topic: str, size_bytes: int) -> None:
        """Count a publication for topic ``name`` of this shard if no session receives it, so that it is lost."""
        topic = self._state.topics.get(name)
        if self.subscriptions.subscribes_to(name) or (topic is not None and topic.external is None):
            return
        self._reject("unknown_topic" if topic is None else "external_topic", mqtt_topic, size_bytes)

    def _stored(self, delivery: Delivery) -> None:
        self._set_pending(self._pending_records - 1)
        self._observer.observe(events.DeviceRecordStored(shard=self._state.shard))
        delivery.acknowledge()
        self._confirmations.send(delivery)

    def _set_pending(self, records: int) -> None:
        self._pending_records = records
        self._observer.observe(events.PendingDeviceRecordsChanged(shard=self._state.shard, records=records))

    def _unknown_topic(self, name: str, delivery: Delivery) -> None:
        self._commit.after_barrier(partial(self._discard, "unknown_topic", delivery))
        self.subscriptions.remove_filters(name)

    def _discard(self, reason: DeviceRejectionReason, delivery: Delivery) -> None:
        self._reject(reason, delivery.topic, len(delivery.payload))
        delivery.acknowledge()
        if not delivery.retained:  # Its device has gone, or got the confirmation of the publication itself.
            self._confirmations.send(delivery, reason)

    def _reject(self, reason: DeviceRejectionReason, mqtt_topic: str, size_bytes: int) -> None:
        self._observer.observe(events.DeviceMessageRejected(reason=reason))
        now = asyncio.get_running_loop().time()
        kind = reason, m.parse_publish_address(self._cluster, mqtt_topic).topic
        if kind not in self._logged_rejections and len(self._logged_rejections) >= MAX_LOGGED_REJECTIONS:
            kind = reason, ""
        logged = self._logged_rejections.get(kind)
        if logged is not None and now - logged.at_seconds < REJECTION_LOG_INTERVAL_SECONDS:
            logged.suppressed += 1
            return
        self._logged_rejections[kind] = _LoggedRejection(now)
        log.warning(
            "device.message_rejected",
            shard=self._state.shard,
            reason=reason,
            mqtt_topic=mqtt_topic[:MAX_LOGGED_TOPIC_CHARS],
            size_bytes=size_bytes,
            suppressed=0 if logged is None else logged.suppressed,
        )
