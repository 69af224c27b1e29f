"""A shard with successive leaders, and a broker that MQTT devices publish to."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from controller.leader.leader import ShardLeader
from headgate.model.headers import Headers
from headgate.protocol.codec import device_sentinel_topic, publish_filters
from headgate.protocol.replies import TopicReply
from headgate.protocol.requests import CreateTopic
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from tests.support.fakes.device_broker import FakeDeviceBroker
from tests.support.samples.chunks import record_rows
from tests.support.waiting import until
from tests.support.worlds.one_shard import CLUSTER, BareClient, OneShard

SESSION = f"headgate:{CLUSTER}:shard:0:topic:1"
"""Of the first topic: how its client id begins."""
ORDERS = publish_filters(CLUSTER, "orders") | {device_sentinel_topic(CLUSTER, 0, 1)}
"""The filters of its session, if it is named orders."""


class Devices:
    """One shard, and a broker that MQTT devices publish to."""

    def __init__(self, broker: FakeDeviceBroker | None = None) -> None:
        self.broker = broker or FakeDeviceBroker()
        self.shard = OneShard()
        self.shard.open_session = self.open_session

    def open_session(
        self, name: str, handler: Callable[[ArrivedMessage], None], _: ReadingWindow
    ) -> MqttPersistentSession:
        return self.broker.session(name, handler)

    @asynccontextmanager
    async def running(self, topic: str | None = "orders") -> AsyncIterator[tuple[ShardLeader, BareClient]]:
        """Run a leader with a connected device session and one topic; yields it and a client."""
        async with self.shard.leader("a") as leader, self.shard.client() as client:
            if topic is not None:
                await create_topic(client, topic)
            yield leader, client

    def publish(
        self,
        name: str,
        payload: bytes,
        *,
        user: str | None = None,
        retain: bool = False,
        response: tuple[str, bytes] | None = None,
        headers: Headers = (),
    ) -> bool:
        """Return whether the device session gets the message."""
        base = f"headgate/{CLUSTER}" if user is None else f"headgate/{CLUSTER}/devices/{user}"
        return self.broker.publish(f"{base}/publish/{name}", payload, retain=retain, response=response, headers=headers)

    def publish_all(self, name: str, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            self.publish(name, payload)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.shard.registry.get_sample_value(f"headgate_{name}", labels)

    async def records(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for number in range(1, await self.shard.ledger.newest() + 1):
            rows += record_rows((await self.shard.ledger.read_records(number))[1])
        return rows

    async def values(self) -> list[bytes]:
        return [row["value"] for row in await self.records()]

    async def all_acknowledged(self) -> None:
        await until(lambda: sum(map(self.broker.waiting, self.broker.sessions())) == 0)


async def create_topic(client: BareClient, topic: str = "orders", **fields: Any) -> None:
    assert isinstance(await client.call(CreateTopic, topic=topic, token=topic, segments=2, **fields), TopicReply)


async def devices_connected(leader: ShardLeader) -> None:
    """Return once every topic is subscribed to."""
    sessions = leader.devices.sessions
    await until(lambda: sessions._start is not None and all(each.subscribed for each in sessions._sessions.values()))
