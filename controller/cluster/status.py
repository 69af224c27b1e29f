"""Answers the HTTP API for the whole cluster: from this daemon's leaders, and from the other daemons.

1. A daemon collects its own summaries at most every second, and spends at most a twentieth of the loop's time on it:
   the pause grows with what the last collection took. Requests meanwhile share the last answer, unless this daemon has
   begun or ended a term since. It asks the other daemons at most every second.
2. Without requests it collects its own summaries for the history only, every `SAMPLE_SECONDS`, and asks
   no other daemon.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from controller.cluster.own_status import shard_statuses, subscription_document, summaries, topic_document
from controller.cluster.peers import Peers, SharedAnswer
from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import ShardController
from controller.leader.shard_spreader import ShardSpreader
from controller.leadership.policy.transitions import Role
from headgate.model.layout import key_hash
from metrics.health import Health
from web.api.documents import DaemonDocument, DaemonPart, SubscriptionDocument, TopicDocument
from web.api.history import SAMPLE_SECONDS, History
from web.api.overview import NotAnsweredError, Overview, merged

PAUSE_FACTOR: Final = 20.0


@dataclass(eq=False, repr=False, kw_only=True)
class ClusterStatus:
    """A `web.api.overview.StatusSource`."""

    instance: str
    cluster: str
    version: str
    url: Callable[[], str | None]
    """Returns where others reach this daemon."""
    health: Callable[[], Health]
    leader_of: Callable[[int], str | None]
    """Shard → the daemon that leads it, if one does."""
    now_ms: Callable[[], int]
    peers: Peers
    controllers: Callable[[], Sequence[ShardController]]
    """Returns none until the daemon has joined its cluster, and ``spreader`` None."""
    spreader: Callable[[], ShardSpreader | None]

    def __post_init__(self) -> None:
        self._started_at_ms = self.now_ms()
        self._history = History()
        self.part = SharedAnswer(self._collect, about=self._terms, pause_factor=PAUSE_FACTOR).get
        self.overview = SharedAnswer(self._merge, about=self._terms).get

    async def sample(self) -> None:
        """Add to the history until cancelled."""
        while True:
            part = await self.part()
            self._history.record(part.daemon.as_of_ms or 0, part.topics, part.subscriptions)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def topic(self, topic: str, *, own: bool) -> TopicDocument:
        leader = await self._leader(topic, own=own)
        if isinstance(leader, str):
            return await self.peers.topic(leader, topic)
        return replace(await topic_document(leader, topic), history=self._history.samples(topic))

    async def subscription(self, topic: str, subscription: str, *, own: bool) -> SubscriptionDocument:
        leader = await self._leader(topic, own=own)
        if isinstance(leader, str):
            return await self.peers.subscription(leader, topic, subscription)
        document = await subscription_document(leader, topic, subscription)
        return replace(document, history=self._history.samples(topic, subscription))

    async def _leader(self, topic: str, *, own: bool) -> ShardLeader | str:
        """Return the leader of the topic's shard in this daemon, or the name of the daemon that has it."""
        if not (controllers := self.controllers()):
            raise NotAnsweredError(f"daemon {self.instance!r} has not joined its cluster yet")
        leading = [each.leader for each in controllers if each.leader is not None]
        if (leader := next((each for each in leading if topic in each.state.topics), None)) is not None:
            return leader
        shard = key_hash(topic.encode()) % len(controllers)
        if not own and (not leading or leading[0].state.ids.shard_counts):  # The cluster has grown, or may have.
            shards = {each.topic: each.shard for each in (await self.overview()).topics}
            shard = shards.get(topic, shard)
        controller = controllers[shard]
        if controller.leader is not None:
            return controller.leader
        name = None if own else self.leader_of(controller.shard)
        if name is None:
            problem = "is not led by this daemon" if own else "has no leader"
            raise NotAnsweredError(f"shard {controller.shard}, the shard of topic {topic!r}, {problem}; try again soon")
        return name

    def _terms(self) -> list[tuple[int, int]]:
        """Return (shard, leader epoch) of what this daemon leads: a leader that answers names itself as leader."""
        leading = (each for each in self.controllers() if each.leadership.role is Role.LEADING)
        return [(each.shard, each.leader.leader_epoch) for each in leading if each.leader is not None]

    async def _collect(self) -> DaemonPart:
        leaders = [each.leader for each in self.controllers() if each.leader is not None]
        topics, subscriptions = await summaries(leaders)
        health, spreader = self.health(), self.spreader()
        document = DaemonDocument(
            daemon=self.instance,
            url=self.url(),
            state=health.state,
            version=self.version,
            started_at_ms=self._started_at_ms,
            spread=None if spreader is None else spreader.state,
            as_of_ms=self.now_ms(),
            components=health.components,
            shards=shard_statuses(self.controllers()),
            history=self._history.samples(),
        )
        return DaemonPart(daemon=document, topics=topics, subscriptions=subscriptions)

    async def _merge(self) -> Overview:
        own, others = await asyncio.gather(self.part(), self.peers.parts())
        parts = [own, *map(self._with_spread, others)]
        spreader, shards = self.spreader(), len(self.controllers())
        level = None if spreader is None else spreader.feature_level
        return await asyncio.to_thread(merged, self.cluster, self.instance, self.now_ms(), shards, parts, level)

    def _with_spread(self, part: DaemonPart) -> DaemonPart:
        """Add what ZooKeeper shows of a daemon that does not answer: an operator may have begun its maintenance."""
        if part.daemon.state != "unreachable" or (spreader := self.spreader()) is None:
            return part
        return DaemonPart(daemon=replace(part.daemon, spread=spreader.state_of(part.daemon.daemon)))
