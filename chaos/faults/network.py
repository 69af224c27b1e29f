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
        self._links = await self.links()
        for link in self._links:
            await link.blackhole(*self.directions)

    async def end(self) -> None:
        for link in self._links:
            await link.heal()


class ZooKeeperCut(Partition):
    """The leader of the orders and all ZooKeeper servers cannot reach each other."""

    name = "zookeeper-cut"
    continuing = ALL_TOPICS

    async def links(self) -> list[Proxy]:
        leader = await self.stage.leader()
        self.note = f"It was {leader}."
        return self.cluster.zookeeper_links[leader]


class BrokerCut(Partition):
    """The leader of the orders and the broker cannot reach each other.

    It lasts until the leader notices it and gives up its shards.
    """

    name = "broker-cut"
    seconds = SILENCE_SECONDS

    async def links(self) -> list[Proxy]:
        leader = await self.stage.leader()
        self.note = f"It was {leader}."
        return [self.cluster.broker_links[leader]]


class ClientCut(Partition):
    """The producer and a consumer of the orders cannot reach the broker.

    It lasts until the consumer is evicted.
    """

    name = "client-cut"
    seconds = SILENCE_SECONDS

    async def links(self) -> list[Proxy]:
        reader = self.stage.rng.choice([reader for reader in READERS if reader.topic == ORDERS])
        self.note = f"The consumer was {reader.name}."
        return [self.cluster.broker_links[name] for name in (f"producer-{ORDERS}", reader.name)]


ClientCut.variant(
    "client-cut-long",
    "The producer and a consumer of the orders cannot reach the broker for longer than grace and revocation take.",
    seconds=40.0,
)
OUT: Final = {"directions": ("to_server",)}
IN: Final = {"directions": ("to_client",)}
ZooKeeperCut.variant("zookeeper-one-way-out", "What the leader of the orders sends to ZooKeeper is lost.", **OUT)
ZooKeeperCut.variant("zookeeper-one-way-in", "What ZooKeeper sends to the leader of the orders is lost.", **IN)
BrokerCut.variant("broker-one-way-out", "What the leader of the orders sends to the broker is lost.", **OUT)
BrokerCut.variant("broker-one-way-in", "What the broker sends to the leader of the orders is lost.", **IN)
ClientCut.variant("client-one-way-out", "What the producer and a consumer of the orders send is lost.", **OUT)
ClientCut.variant(
    "client-one-way-in", "What the broker sends to the producer and a consumer of the orders is lost.", **IN
)
