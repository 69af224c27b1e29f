"""The daemon's connections to the broker: one for all shards, and a device session per topic of the shards led here.

All of them present the same user and certificate. A reload reads password and certificates again. Each connection uses
the newest ones when it connects the next time; it is not interrupted.
"""

import asyncio
import random
import secrets
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from controller.leadership.session_secret import SessionSecret
from controller.settings.files import read_broker_tls
from controller.settings.load import Settings
from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.protocol import codec
from headgate.storage.object_store import open_store
from headgate.transport.broker_tls import broker_tls
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt import MqttTransport
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from headgate.transport.port import LARGEST_PACKET_BYTES, BrokerProperties
from metrics import events
from metrics.label_values import BrokerConnectionKind

WITHOUT_MQTT5: Final = (
    "the broker speaks no MQTT 5: a device can displace messages of its topic with many retained messages, "
    "no device gets a confirmation, and clients learn no limit of packets"
)

log = structlog.get_logger(__name__)


def daemon_timing(ping_seconds: int) -> MqttTiming:
    """Return the time limits of a daemon that pings the broker after ``ping_seconds``."""
    # The broker allows for a daemon that is busy for a moment.
    return MqttTiming(
        keepalive_seconds=max(MqttTiming().keepalive_seconds, 2 * ping_seconds), ping_seconds=ping_seconds
    )


def log_broker_limits(properties: BrokerProperties | None) -> None:
    """Log what the broker does not accept although headgate allows it; ``properties`` None: it speaks no MQTT 5."""
    if properties is None:
        log.warning("broker.older_protocol", consequence=WITHOUT_MQTT5, remedy="use mosquitto from version 2.0")
        return
    limit_bytes = properties.maximum_packet_bytes
    if limit_bytes is not None and limit_bytes < LARGEST_PACKET_BYTES:
        log.warning(
            "broker.limits_packets",
            limit_bytes=limit_bytes,
            needed_bytes=LARGEST_PACKET_BYTES,
            consequence="larger records and replies are refused before they are sent",
            remedy="raise the limit of the broker; mosquitto: max_packet_size 5242880",
        )


ADMIN_SECONDS: Final = 10.0
"""For a command that the page sends."""
DROPPED_TOPIC: Final = "$SYS/broker/publish/messages/dropped"
MAX_OTHER_CLUSTERS: Final = 10
DESCRIBE_AGAIN_SECONDS: Final = 2.0
"""Far below `headgate.client.cluster_watch.SILENT_SECONDS`."""
_DESCRIPTION: Final = msgspec.msgpack.Decoder(codec.ClusterDescription)


class BrokerDrops:
    """Follows the broker's count of dropped messages, which begins again at 0 when the broker restarts.

    The broker acknowledges a message before it drops it for a session whose queue is full. So neither the device nor
    the leader notices. Every daemon counts the same number. Other brokers may not publish it, or may reject the filter.
    """

    def __init__(self, observer: events.Observer) -> None:
        self._observer = observer
        self._last: int | None = None

    def on_message(self, _topic: str, payload: bytes) -> None:
        """Take the counter's value; what was dropped before the first one is not counted."""
        if not payload.isdigit():
            return
        value, last = int(payload), self._last
        self._last = value
        if last is None or value == last:
            return
        dropped = value - last if value > last else value
        if dropped:
            self._observer.observe(events.BrokerDroppedMessages(messages=dropped))
            log.error(
                "broker.dropped_messages",
                messages=dropped,
                remedy="find who publishes more than the daemons store, or raise max_queued_messages and "
                "max_queued_bytes of the broker",
            )


class OtherClusters:
    """Notices another cluster that has this one's name on the same broker, and describes this one again.

    A client stays with the ledger that it knows while that is described, so both clusters describe theirs as long as
    they hear each other. A retained description may be of a cluster that was here earlier: only those count that are
    published now.
    """

    def __init__(self, own: Callable[[], codec.ClusterDescription], publish_own: Callable[[], None]) -> None:
        self._own = own
        self._publish_own = publish_own
        self._reported: set[str] = set()
        self._due: asyncio.TimerHandle | None = None

    def on_message(self, _topic: str, payload: bytes) -> None:
        """Report each other ledger once, at most `MAX_OTHER_CLUSTERS`: on an open broker any program may name some."""
        own = self._own()
        try:
            other = codec.decode(_DESCRIPTION, payload)
        except msgspec.DecodeError:
            return
        if other.ledger_id in (own.ledger_id, ""):
            return
        loop = asyncio.get_running_loop()
        if self._due is None or self._due.when() <= loop.time():
            self._due = loop.call_later(DESCRIBE_AGAIN_SECONDS, self._publish_own)
        if other.ledger_id not in self._reported and len(self._reported) < MAX_OTHER_CLUSTERS:
            self._reported.add(other.ledger_id)
            log.error(
                "cluster.name_used_twice",
                ledger_url=own.ledger_url,
                other_ledger_url=other.ledger_url,
                consequence="new clients find either, and both store what MQTT devices publish",
                remedy="stop one of them, and give it another cluster.name",
            )


class BrokerConnection:
    def __init__(self, settings: Settings, observer: events.Observer, rng: random.Random) -> None:
        """Read password and certificates. Raises ConfigError if one is unusable."""
        self._settings = settings
        self._observer = observer
        self._rng = rng
        self.main: MqttTransport | None = None
        """The connection for all shards, once the daemon has joined its cluster."""
        self._describe: Callable[[], codec.ClusterDescription] | None = None
        self._secret: SessionSecret | None = None
        self._password = settings.broker.password()
        self._context = read_broker_tls(settings.broker)
        tls = broker_tls(settings.broker, settings.broker.host, "$.broker.")
        self._tls = None if tls is None else replace(tls, context=self._newest_context)

    def reload(self) -> None:
        """Read password and certificates again. Raises ConfigError, and changes nothing, if one is unusable."""
        broker = self._settings.broker
        self._password, self._context = broker.password(), read_broker_tls(broker)

    def transport(
        self, instance: str, secret: SessionSecret, describe: Callable[[], codec.ClusterDescription]
    ) -> MqttTransport:
        """Return the connection of daemon ``instance``, not yet entered; the first of the connections.

        ``secret`` is for this one and for the device sessions. ``describe`` returns what clients need to know.
        """
        self._secret, self._describe = secret, describe
        broker = self._settings.broker
        client_id = codec.daemon_client_id(self._settings.cluster.name, instance)
        options = self._options(client_id, "daemon")
        transport = self.main = MqttTransport(**options, timing=daemon_timing(broker.ping_seconds))
        transport.router.add(DROPPED_TOPIC, BrokerDrops(self._observer).on_message, retained=True, optional=True)
        others = OtherClusters(describe, self.publish_description)
        topic = codec.cluster_topic(self._settings.cluster.name)
        transport.router.add(topic, others.on_message, retained=False, optional=True)
        transport.on_connection(lambda connected: log_broker_limits(transport.broker) if connected else None)
        return transport

    def publish_description(self) -> None:
        """Describe the cluster to clients, once its ledger is known: they name it in each request."""
        if self.main is not None and self._describe is not None and (described := self._describe()).ledger_id:
            self.main.publish(codec.cluster_topic(self._settings.cluster.name), codec.encode(described), retain=True)

    def admin(self, user: str) -> Admin:
        """Return an Admin, not yet entered, whose requests are in the name of ``user``: leaders judge its rights."""
        cluster, client_id = self._settings.cluster.name, f"page-{secrets.token_hex(8)}"
        will = Client.will(cluster, client_id, user)
        transport = MqttTransport(**self._options(client_id, "daemon"), will=will)
        store = open_store(self._settings.ledger.url)
        client = Client(transport=transport, store=store, cluster=cluster, client_id=client_id, user=user)
        if self._describe is not None:
            client.cluster_watch.described(self._describe())  # And not by the daemons of another cluster.
        return Admin(client, timeout_seconds=ADMIN_SECONDS)

    def device_session(
        self, client_id: str, handler: Callable[[ArrivedMessage], None], window: ReadingWindow
    ) -> MqttPersistentSession:
        """Return the device session of one topic. Its name is the same on every daemon."""
        return MqttPersistentSession(handler=handler, window=window, **self._options(client_id, "devices"))

    def _options(self, client_id: str, connection: BrokerConnectionKind) -> dict[str, Any]:
        assert self._secret is not None, "a leader is connected to the broker"
        broker, event = self._settings.broker, events.BrokerSessionTakenOver(connection=connection)
        return {
            "host": broker.host,
            "port": broker.port,
            "client_id": client_id,
            "secret_suffix": self._secret.suffix(client_id),
            "on_taken_over": partial(self._observer.observe, event),
            "username": broker.username,
            "password": lambda: self._password,
            "tls": self._tls,
            "rng": self._rng,
        }

    def _newest_context(self) -> ssl.SSLContext:
        assert self._context is not None, "tls cannot change while the daemon runs"
        return self._context
