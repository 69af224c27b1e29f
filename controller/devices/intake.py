"""Stores what MQTT devices publish, for the topics see `headgate.protocol.codec.parse_publish_address`.

Each message takes the route of a batch without a producer id. The broker delivers unacknowledged messages to the next
leader: at least once, in the broker's order. Duplicates are not detected: MQTT has no identifier for that.

1. No message is acknowledged before the chunk that contains it is durable.
2. A message that cannot be stored (empty key, too large, headers beyond the limits, a copy of a retained message) is
   counted, logged at a limited rate, and acknowledged, so that it is not delivered again. So is a message for a topic
   that does not exist, which no session receives: see `UnknownTopicWatch`.
3. A message in the session of a topic that is deleted belongs to no other topic, whatever its name. A
   successor of this leader may still have the topic: such a message is acknowledged only after a barrier.
4. The leader calls `accept` only while the term serves: later messages are for the next leader.
   Messages that arrive while devices are being disabled are stored.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, get_args
from zlib import crc32

import msgspec
import structlog

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from controller.devices.sessions import DeviceSessions
from controller.leadership.policy.shard_load import MESSAGE_OVERHEAD_BYTES
from headgate.backoff import ReportLimit
from headgate.errors import TransportError
from headgate.model.headers import header_bytes, wrong_headers
from headgate.model.layout import ShardMap
from headgate.protocol.codec import all_publications_filters, confirmations_prefix, parse_publish_address
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from headgate.protocol.requests import ProduceBatch, Record, RecordHeader
from headgate.transport.mqtt_packets import ArrivedMessage
from headgate.transport.port import Transport
from metrics import events
from metrics.label_values import DeviceRejectionReason
from shard.requests.verdicts import route_batch
from shard.state.shard_state import ShardState

REJECTION_LOG_INTERVAL_SECONDS = 60.0
"""Between two log lines for one reason and topic."""
MAX_LOGGED_TOPIC_CHARS = 200
"""Length limit of an MQTT topic in a log line."""
LOGGED_TOPICS = 100
"""Log lines per reason in that time. Topics with the same hash share one."""

log = structlog.get_logger(__name__)

MAX_RESPONSE_TOPIC_BYTES: Final = 256
MAX_RESPONSE_LEVELS: Final = 32
"""mosquitto ends the connection of a daemon that publishes to more than 200. Other brokers have lower limits."""
MAX_CORRELATION_BYTES: Final = 256


class DeviceConfirmation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a device gets, as JSON."""

    outcome: Literal["stored", "refused"]
    """``stored``: the record is durable. ``refused``: it was not stored, and will not be."""
    reason: DeviceRejectionReason | None = None
    """Why it was refused."""


_ENCODER = msgspec.json.Encoder()


def may_confirm(cluster: str, user: str | None, topic: str, correlation: bytes | None) -> bool:
    """Return whether a device that published in the name of ``user`` may get a confirmation on ``topic``."""
    if user is None or len(topic.encode()) > MAX_RESPONSE_TOPIC_BYTES:
        return False
    prefix = confirmations_prefix(cluster, user)
    rest = topic.removeprefix(prefix)
    return (
        rest not in (topic, "")
        and topic.count("/") < MAX_RESPONSE_LEVELS
        and not any(character in topic for character in "+#\0")
        and len(correlation or b"") <= MAX_CORRELATION_BYTES
    )


class Confirmations:
    """Tells the devices of one shard that a record is durable, or why it was refused, if they ask for it (MQTT 5).

    A device asks with a response topic. It must begin with `headgate/<cluster>/devices/<user>/replies/`, and the
    message must be published below `headgate/<cluster>/devices/<user>/publish/`: the broker's list lets only that user
    publish and read there. So no device can make the daemon publish to a topic of others. Confirmations go at QoS 0: a
    device that gets none publishes again.
    """

    def __init__(self, cluster: str, transport: Transport, observer: events.Observer) -> None:
        self._cluster = cluster
        self._transport = transport
        self._observer = observer

    def send(self, delivery: ArrivedMessage, reason: DeviceRejectionReason | None = None) -> None:
        """Tell the device that its message is stored, or refused for ``reason``; nothing, if it does not ask."""
        topic = delivery.response_topic
        if topic is None:
            return
        user = parse_publish_address(self._cluster, delivery.topic).user
        if not may_confirm(self._cluster, user, topic, delivery.correlation_data):
            self._observer.observe(events.DeviceConfirmationEnded(outcome="invalid_topic"))
            return
        message = DeviceConfirmation(outcome="stored" if reason is None else "refused", reason=reason)
        sent = self._transport.publish(topic, _ENCODER.encode(message), correlation_data=delivery.correlation_data)
        self._observer.observe(events.DeviceConfirmationEnded(outcome="sent" if sent else "not_sent"))


class DeviceIntake:
    """Stores the messages of MQTT devices for one shard during one term."""

    def __init__(self, context: LeaderContext, state: ShardState, commit: GroupCommit) -> None:
        self.sessions = DeviceSessions(context, state, commit)
        self.arrived_cost = 0
        """See `Arrivals`: of the messages of this term."""
        self._context = context
        self._state = state
        self._commit = commit
        self._confirmations = Confirmations(context.cluster, context.transport, context.observer)
        self._pending_records = 0
        self._logged_rejections = ReportLimit(
            REJECTION_LOG_INTERVAL_SECONDS, len(get_args(DeviceRejectionReason)) * LOGGED_TOPICS
        )

    def accept(self, topic_id: int, delivery: ArrivedMessage) -> None:
        """Store one message of this topic's session, or discard it; acknowledge it when the outcome is durable."""
        if self.sessions.take_sentinel(topic_id, delivery):
            return
        self.arrived_cost += MESSAGE_OVERHEAD_BYTES + len(delivery.payload) + header_bytes(delivery.headers)
        name, text, _ = parse_publish_address(self._context.cluster, delivery.topic)
        key = text.encode()
        topic = self._state.topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            self._commit.after_barrier(partial(self._discard, "unknown_topic", delivery))
        elif delivery.retained:
            self._discard("retained", delivery)
        elif not key:
            self._discard("empty_key", delivery)
        elif wrong_headers(delivery.headers, reserved=False) is not None:
            self._discard("invalid_headers", delivery)
        elif len(key) + len(delivery.payload) + header_bytes(delivery.headers) > MAX_RECORD_BYTES:
            self._discard("too_large", delivery)
        else:
            record = Record(key, delivery.payload, self._context.now_ms())
            headers = [RecordHeader(0, *header) for header in delivery.headers]
            batch = ProduceBatch(topic=name, records=[record], headers=headers)
            self._commit.propose_records(*route_batch(topic, batch))
            self._set_pending(self._pending_records + 1)
            self._commit.when_durable(self._commit.newest, partial(self._stored, delivery))

    def has_topic(self, name: str) -> bool:
        return name in self._state.topics

    def note_publication(self, name: str, mqtt_topic: str, size_bytes: int) -> None:
        """Count a publication for topic ``name`` of this shard if no session receives it, so that it is lost."""
        topic = self._state.topics.get(name)
        if topic is None or topic.external is not None:
            self._reject("unknown_topic" if topic is None else "external_topic", mqtt_topic, size_bytes)

    def _stored(self, delivery: ArrivedMessage) -> None:
        self._set_pending(self._pending_records - 1)
        self._context.observer.observe(events.DeviceRecordStored(shard=self._state.shard))
        delivery.acknowledge()
        self._confirmations.send(delivery)

    def _set_pending(self, records: int) -> None:
        self._pending_records = records
        self._context.observer.observe(events.PendingDeviceRecordsChanged(shard=self._state.shard, records=records))

    def _discard(self, reason: DeviceRejectionReason, delivery: ArrivedMessage) -> None:
        self._reject(reason, delivery.topic, len(delivery.payload))
        delivery.acknowledge()
        if not delivery.retained:  # Its device has gone, or got the confirmation of the publication itself.
            self._confirmations.send(delivery, reason)

    def _reject(self, reason: DeviceRejectionReason, mqtt_topic: str, size_bytes: int) -> None:
        self._context.observer.observe(events.DeviceMessageRejected(reason=reason))
        topic = parse_publish_address(self._context.cluster, mqtt_topic).topic
        kind = reason, crc32(topic.encode()) % LOGGED_TOPICS
        if self._logged_rejections.is_due(asyncio.get_running_loop().time(), kind):
            log.warning(
                "device.message_rejected",
                shard=self._state.shard,
                reason=reason,
                mqtt_topic=mqtt_topic[:MAX_LOGGED_TOPIC_CHARS],
                size_bytes=size_bytes,
            )


CHECK_INTERVAL_SECONDS: Final = 1.0
"""How soon the subscription follows the leaders, the setting and the limit."""

WINDOW_SECONDS: Final = 60.0
MAX_MESSAGES: Final = 6_000
"""In a window, with `MAX_BYTES`: about half a percent of a daemon's time."""
MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(eq=False, repr=False, kw_only=True)
class UnknownTopicWatch:
    """Notices what MQTT devices publish to topics that do not exist: no session receives it, and devices get a PUBACK.

    A daemon that leads subscribes to all publications with its own connection, at QoS 0, so it receives each one a
    second time. That has a limit per window; what follows in the window is not looked at. So a device that publishes
    again and again is noticed, and a busy cluster counts too few.
    """

    cluster: str
    transport: Transport
    intakes: Callable[[], Sequence[DeviceIntake | None]]
    """Per shard, that of its leader; None where this daemon does not lead."""
    shards: Callable[[], ShardMap]
    enabled: Callable[[], bool]
    _messages: int = 0
    _size_bytes: int = 0

    async def run(self) -> None:
        """Watch until cancelled, or until the broker rejects the subscription."""
        loop = asyncio.get_running_loop()
        window_ends_at = 0.0
        subscribed = False
        while True:
            if loop.time() >= window_ends_at:
                window_ends_at = loop.time() + WINDOW_SECONDS
                self._messages = self._size_bytes = 0
            wanted = self._wanted()
            if wanted and not subscribed:
                try:
                    for each in all_publications_filters(self.cluster):
                        await self.transport.subscribe(each, self._on_publication)
                except TransportError as error:
                    log.warning("device.watch_rejected", reason=str(error))
                    await self._unsubscribe()
                    return
            elif subscribed and not wanted:
                await self._unsubscribe()
            subscribed = wanted
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

    async def _unsubscribe(self) -> None:
        for each in all_publications_filters(self.cluster):
            await self.transport.unsubscribe(each)

    def _wanted(self) -> bool:
        return (
            self.enabled()
            and self._messages < MAX_MESSAGES
            and self._size_bytes < MAX_BYTES
            and any(intake is not None for intake in self.intakes())
        )

    def _on_publication(self, mqtt_topic: str, payload: bytes) -> None:
        self._messages += 1
        self._size_bytes += len(payload)
        intakes = self.intakes()
        name = parse_publish_address(self.cluster, mqtt_topic).topic
        places = [intakes[shard] for shard in self.shards().candidates(name) if shard < len(intakes)]
        # Of several places, only a daemon that leads all knows that none has the topic.
        having = (each for each in places if each is not None and each.has_topic(name))
        intake = next(having, None if None in places else places[0])
        if intake is not None:
            intake.note_publication(name, mqtt_topic, len(payload))
