"""Real controllers of one shard in several daemons, on fake servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from controller.access.control import AccessControl
from controller.cluster.config import LedgerIdentity
from controller.context.leader_context import LeaderContext
from controller.context.step_driver import SerialSteps, TurnBudget
from controller.leader.daemon_shards import ElectionEvents
from controller.leader.follower import ShardContext
from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import ShardController
from controller.leader.shard_spreader import ShardSpreader
from controller.leader.standby_memory import StandbyMemory
from controller.leadership.policy.feature_levels import supported
from controller.leadership.policy.instance_record import InstanceRecord
from controller.leadership.policy.transitions import Event, Role, ShardLeaders
from controller.settings.sections import IngestSettings, RetentionSettings, ScalingSettings, SpreadSettings
from headgate.ledger.compacted import delete_compacted_segments
from headgate.ledger.identity import identity_object, name_level
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import IDENTITY_PATH
from headgate.model import entries as e
from headgate.model.layout import ShardMap
from metrics.instruments import Instruments
from shard.access.rules import OPEN
from shard.state.shard_state import ShardState
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.zookeeper import FakeZooKeeper
from tests.support.waiting import until
from tests.support.worlds.one_shard import CLUSTER, SETTINGS, now_ms

LEDGER_ID: Final = "0123456789abcdef" * 2


class Contender:
    """The controllers of one daemon: that of shard 0, and with ``contends_for`` those of more."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        store_type: type[FakeStore] = FakeStore,
        shards: int = 1,
        contends_for: int = 1,
        spread: SpreadSettings | None = None,
    ) -> None:
        """``spread``: keep the shards spread; None: they stay where they are."""
        self.name, self.standby_bytes, self.replicas, self.unreachable_seconds = name, 1 << 30, 2, 5.0
        self.registry, self.found_shards = CollectorRegistry(), list[ShardMap]()
        self.instruments = Instruments(self.registry)
        self.access, self.shards = AccessControl(OPEN, self.instruments), lambda: ShardMap((shards,))
        self.store = store_type(objects=cluster.objects, latency_seconds=(0.001, 0.002))
        self.transport = cluster.broker.transport(f"daemon-{name}")
        self.election_events = ElectionEvents(
            lambda: self.controllers, ShardLeaders(name), 0, on_lost=self._session_lost, observer=self.instruments
        )
        self.elections = cluster.zookeeper.elections(name, self.election_events.handle)
        claim = self.elections.registry.claim_ledger
        identity = LedgerIdentity(self.store, url="memory:", node="/test", ledger_id=LEDGER_ID, claim=claim)
        self.standby = StandbyMemory(name, self.elections, lambda: self.standby_bytes)
        restoring = SerialSteps(TurnBudget(), lambda: None)
        self.controllers = [
            ShardController(
                ShardContext(
                    ledger=Ledger(self.store, shard),
                    shards=self.shards,
                    found_shards=self.found_shards.append,
                    cluster=CLUSTER,
                    instance=name,
                    elections=self.elections,
                    transport=self.transport,
                    new_leader=self._new_leader,
                    standby=self.standby,
                    unready=lambda: None if self.transport.connected else "the broker is not connected",
                    observer=self.instruments,
                    now_ms=now_ms,
                    new_term_id=partial(cluster.rng.getrandbits, 63),
                    require_ledger=identity.require,
                    restoring=restoring,
                )
            )
            for shard in range(contends_for)
        ]
        self.controller = self.controllers[0]
        self.spreader = ShardSpreader(
            instance=name,
            elections=self.elections,
            controllers=self.controllers,
            settings=lambda: spread or SpreadSettings(enabled=False),
            standby=self.standby,
            replicas=lambda: self.replicas,
            record=InstanceRecord(version="1", levels=supported()),
            writes_fail=self.instruments.writes_fail,
            observer=self.instruments,
            name_level=partial(name_level, self.store),
        )
        self._spreads = spread is not None

    def _session_lost(self) -> None:
        self.spreader.own.session_lost()

    @property
    def leads(self) -> bool:
        return self.controller.leadership.role is Role.LEADING

    @property
    def leader(self) -> ShardLeader:
        assert self.controller.leader is not None
        return self.controller.leader

    @property
    def led(self) -> set[int]:
        return {each.shard for each in self.controllers if each.leadership.role is Role.LEADING}

    async def stop(self) -> None:
        """End as after SIGTERM, in `running`."""
        self._spreading.cancel()
        await self.spreader.evacuate()
        for controller in self.controllers:
            controller.post(Event.STOP_REQUESTED)
        await self._task

    def _new_leader(self, state: ShardState, yields_to_contender: Callable[[], bool]) -> ShardLeader:
        context = LeaderContext(
            shards=self.shards,
            cluster=CLUSTER,
            instance=self.name,
            ledger=Ledger(self.store, state.shard),
            ledger_id=b"",
            transport=self.transport,
            access=self.access,
            ingest=IngestSettings(unreachable_seconds=self.unreachable_seconds, write_timeout_seconds=5),
            subscriptions=SETTINGS,
            scaling=ScalingSettings(),
            retention=RetentionSettings(),
            delete_data=partial(delete_compacted_segments, self.store),
            observer=self.instruments,
            overview=asyncio.Future,  # No test asks.
            operations=self.spreader,
            drained_source=lambda _: asyncio.Future(),
            feature_level=lambda: self.spreader.view.level,
            now_ms=now_ms,
            rng=random.Random(1),
            new_producer_id=partial(random.Random(1).getrandbits, 63),
        )
        return ShardLeader(state, context, yields_to_contender)

    def _on_broker(self, connected: bool) -> None:
        self.spreader.own.broker_changed(connected)
        for controller in self.controllers:
            if controller.leader is not None:
                controller.leader.connection_changed(connected)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Contender]:
        async with self.elections, self.transport:
            self.transport.on_connection(self._on_broker)
            self._task = asyncio.gather(*(each.run() for each in self.controllers))
            self._spreading = asyncio.create_task(self._spread())
            try:
                yield self
            finally:
                self._spreading.cancel()
                self._task.cancel()
                outcomes = await asyncio.gather(self._task, self._spreading, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Contender]:
        """Run it; the block begins once it leads."""
        async with self.running():
            await until(lambda: self.leads)
            yield self

    async def _spread(self) -> None:
        if self._spreads:
            await self.spreader.own.register()
            await self.spreader.run()


class Cluster:
    """The servers that contenders share."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {IDENTITY_PATH: identity_object(LEDGER_ID)}
        self.rng = random.Random(1)
        self.broker = FakeBroker()
        self.zookeeper = FakeZooKeeper(session_timeout_seconds=6)
        self.ledger = Ledger(FakeStore(objects=self.objects), 0)

    async def term(self, name: str, topics: int) -> None:
        """Run a term that commits so many chunks with a topic each."""
        async with Contender(self, name).leading() as a:
            for number in range(1, topics + 1):
                created = e.TopicCreated(topic_id=number, topic=f"t{number}", segments=1, token=f"create {number}")
                a.leader.commit.propose(created)
                await a.leader.commit.flush()
            await a.stop()

    async def terms(self) -> list[tuple[int, str]]:
        """Return (leader epoch, instance) of each term in the ledger."""
        found = []
        for number in range(1, await self.ledger.newest() + 1):
            entries = (await self.ledger.read(number)).entries
            found += [(entry.leader_epoch, entry.instance) for entry in entries if isinstance(entry, e.TermStarted)]
        return found
