"""Faults of the network: connections that lose what one side sends, or what both send.

Nothing is reset, so both sides only notice silence. When the connection heals, it is reset, because data is missing.
"""

from abc import abstractmethod
from typing import Final

from bench.harness.tcp_proxy import Direction, Proxy
from chaos.cluster import ORDERS, READERS
from chaos.faults.fault import ALL_TOPICS, Fault

SILENCE_SECONDS: Final = 16.0
"""A client notices silence of the broker after up to 11 s, the broker that of a client after 7.5 s, and then a consumer
has 6 s of grace."""


class Partition(Fault):
    """Connections lose data in some directions."""

    directions: tuple[Direction, ...] = ()
    """Directions that lose data; none: both."""

    @abstractmethod
    async def links(self) -> list[Proxy]:
        """Return the connections."""

    async def begin(self) -> None:
        """Drop the data."""
        self._links = await self.links()
        for link in self._links:
            await link.blackhole(*self.directions)

    async def end(self) -> None:
        """Heal the connections."""
        for link in self._links:
            await link.heal()


class ZooKeeperCut(Partition):
    """The leader and ZooKeeper cannot reach each other."""

    name = "zookeeper-cut"
    summary = "The leader of the orders and all ZooKeeper servers cannot reach each other."
    continuing = ALL_TOPICS

    async def links(self) -> list[Proxy]:
        """Return the connections of the leader to ZooKeeper."""
        leader = await self.stage.leader()
        self.note = f"It was {leader}."
        return self.cluster.zookeeper_links[leader]


class ZooKeeperMute(ZooKeeperCut):
    """ZooKeeper does not receive what the leader sends."""

    name = "zookeeper-one-way-out"
    summary = "What the leader of the orders sends to ZooKeeper is lost."
    directions = ("to_server",)


class ZooKeeperDeaf(ZooKeeperCut):
    """The leader does not receive what ZooKeeper sends."""

    name = "zookeeper-one-way-in"
    summary = "What ZooKeeper sends to the leader of the orders is lost."
    directions = ("to_client",)


class BrokerCut(Partition):
    """The leader and the broker cannot reach each other, until the leader notices it and gives up its shards."""

    name = "broker-cut"
    summary = "The leader of the orders and the broker cannot reach each other."
    seconds = SILENCE_SECONDS

    async def links(self) -> list[Proxy]:
        """Return the connection of the leader to the broker."""
        leader = await self.stage.leader()
        self.note = f"It was {leader}."
        return [self.cluster.broker_links[leader]]


class BrokerMute(BrokerCut):
    """The broker does not receive what the leader sends."""

    name = "broker-one-way-out"
    summary = "What the leader of the orders sends to the broker is lost."
    directions = ("to_server",)


class BrokerDeaf(BrokerCut):
    """The leader does not receive what the broker sends."""

    name = "broker-one-way-in"
    summary = "What the broker sends to the leader of the orders is lost."
    directions = ("to_client",)


class ClientCut(Partition):
    """The producer and one consumer of the orders cannot reach the broker, until the consumer is evicted."""

    name = "client-cut"
    summary = "The producer and a consumer of the orders cannot reach the broker."
    seconds = SILENCE_SECONDS

    async def links(self) -> list[Proxy]:
        """Return the connections of the producer and a consumer."""
        reader = self.stage.rng.choice([reader for reader in READERS if reader.topic == ORDERS])
        self.note = f"The consumer was {reader.name}."
        return [self.cluster.broker_links[name] for name in (f"producer-{ORDERS}", reader.name)]


class ClientMute(ClientCut):
    """The broker does not receive what the producer and one consumer of the orders send."""

    name = "client-one-way-out"
    summary = "What the producer and a consumer of the orders send is lost."
    directions = ("to_server",)


class ClientDeaf(ClientCut):
    """The producer and one consumer of the orders do not receive what the broker sends."""

    name = "client-one-way-in"
    summary = "What the broker sends to the producer and a consumer of the orders is lost."
    directions = ("to_client",)


FAULTS: tuple[type[Fault], ...] = (
    ZooKeeperCut,
    ZooKeeperMute,
    ZooKeeperDeaf,
    BrokerCut,
    BrokerMute,
    BrokerDeaf,
    ClientCut,
    ClientMute,
    ClientDeaf,
)
