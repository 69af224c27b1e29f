"""Keeps the shards spread over the daemons: one daemon's share of the work.

`controller.leadership.policy.spread` decides where each shard should be, from ZooKeeper's view, and which transfers
this daemon starts. This module reads the view, registers this daemon, starts transfers of shards that this daemon
leads, and gives all of them away before it stops.

`controller.leadership.policy.standby` decides which daemons keep the state of each shard. The leader of a shard has
its first successor placed behind itself in the queue.

1. Without contact to ZooKeeper nothing is started.
2. A stopping daemon looks again before it leaves: in a rolling restart, its successor has just returned. It also
   waits for transfers that have begun already, until the terms of the successors have begun.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog
from msgspec.structs import replace as with_fields

from controller.leader.daemon_shards import grown
from controller.leader.leader import ShardLeader
from controller.leader.shard_controller import BEGIN_TIMEOUT_SECONDS, TRANSFER_TIMEOUT_SECONDS, ShardController
from controller.leader.standby_memory import StandbyMemory
from controller.leadership.election import Elections, ElectionsUnreachableError, Registry
from controller.leadership.policy import spread
from controller.leadership.policy.feature_levels import join_problem, judged, level_of
from controller.leadership.policy.instance_record import (
    LACKS,
    Contact,
    InstanceRecord,
    Servers,
    encode_record,
    read_record,
    readiness,
)
from controller.leadership.policy.queue_order import SeenQueue, left_to_others
from controller.leadership.policy.shard_load import Arrivals, Loads, ShardLoads, shard_loads
from controller.leadership.policy.standby import Successors, successors
from controller.leadership.policy.transitions import Event, Role
from controller.settings.sections import SpreadSettings
from headgate.errors import ConfigError, HeadgateError, StoreUnavailableError
from headgate.views.cluster import FeatureLevel, SpreadState
from metrics import events

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class Registration:
    """What one daemon registers about itself in ZooKeeper, after each change.

    1. It is settled once its session has lasted for ``settle_seconds``. A new session begins again.
    2. `controller.leadership.policy.shard_load` decides which loads it reports. All daemons weigh the shards by them.
    3. It says whether it can do a leader's work, or what it lacks (`readiness`).
    """

    instance: str
    registry: Registry
    record: InstanceRecord
    """What is registered first; what changes is added."""
    settings: Callable[[], SpreadSettings]
    writes_fail: Callable[[], bool]
    observer: events.Observer
    leaving: bool = False
    _loads: ShardLoads = field(default_factory=ShardLoads)
    _live_since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    _servers: Servers = field(init=False)

    def __post_init__(self) -> None:
        now = self._live_since
        self._servers = Servers(Contact(works=False, since=now), Contact(works=True, since=now))

    async def register(self) -> None:
        """Register this daemon as live. Returns at once."""
        await self.registry.register_instance(self.instance, encode_record(self.record))

    def session_lost(self) -> None:
        """Begin to settle again (rule 1)."""
        self._live_since = asyncio.get_running_loop().time()

    def broker_changed(self, connected: bool) -> None:
        """Note a connection to the broker, or its loss (rule 3)."""
        self._servers.broker.note(works=connected, now=asyncio.get_running_loop().time())

    async def settle(self) -> None:
        """Register the loads, and whether this daemon is settled, leaving or able to lead, after a change."""
        now = asyncio.get_running_loop().time()
        self._servers.store.note(works=not self.writes_fail(), now=now)
        record = with_fields(
            self.record,
            settled=now - self._live_since >= self.settings().settle_seconds,
            leaving=self.leaving,
            readiness=readiness(self._servers, now),
            loads=dict(self._loads.reported),
        )
        if record != self.record:
            self.record = record
            await self.register()

    def weigh(self, led: Iterable[ShardLeader], holders: Mapping[int, str | None], others: Mapping[str, Loads]) -> None:
        """Measure the shards that this daemon leads, and decide which loads to report (rule 2)."""
        now = asyncio.get_running_loop().time()
        arrivals = {
            each.state.shard: Arrivals(each.leader_epoch, each.arrived_cost + each.devices.arrived_cost) for each in led
        }
        self._loads.measure(now, arrivals)
        before = self._loads.reported
        if self._loads.report(now, holders, others):
            log.info("spread.loads_reported", loads=self._loads.reported)
            for shard, load in self._loads.reported.items() - before.items():
                self.observer.observe(events.ShardLoadReported(shard=shard, load_bytes_per_second=load))


VIEW_INTERVAL_SECONDS: Final = 2.0
"""Pause between two looks at the live daemons."""
EVACUATION_SECONDS: Final = 10.0
"""Longest time in which a stopping daemon transfers its shards. It hands over the others as without a successor."""
EVACUATION_TRANSFER_SECONDS: Final = 3.0
"""Longest wait for one successor meanwhile. Then another one is tried, or the same one again if there is no other."""

CONTEND_SECONDS: Final = 5.0
"""An operator's transfer waits so long for a daemon that has just given the shard away, and queues for it again."""
CONTEND_CHECK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class View:
    """The daemons as ZooKeeper listed them last."""

    records: Mapping[str, InstanceRecord] = field(default_factory=dict)
    maintenance: frozenset[str] = frozenset()
    level: int = 0
    """The cluster's feature level."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What follows from a view and the queues, until they change."""

    seen: object = None
    daemons: Sequence[spread.LiveDaemon] = ()
    plan: spread.Plan = field(default_factory=lambda: spread.Plan({}, ()))
    successors: Successors = field(default_factory=dict)


class ShardSpreader:
    def __init__(
        self,
        *,
        instance: str,
        elections: Elections,
        controllers: Sequence[ShardController],
        settings: Callable[[], SpreadSettings],
        standby: StandbyMemory,
        replicas: Callable[[], int],
        record: InstanceRecord,
        writes_fail: Callable[[], bool],
        observer: events.Observer,
        name_level: Callable[[int], Awaitable[None]],
        level: int = 0,
    ) -> None:
        """``replicas``: how many daemons keep the state of a shard beside its leader.

        ``name_level`` names a feature level in the ledger. ``record`` is what this daemon registers; what changes is
        added. ``writes_fail``: whether its last write to the store has failed.
        """
        self.view = View(level=level)
        self.decided = Decided()
        self._instance = instance
        self._elections = elections
        self._name_level = name_level
        self._controllers = controllers
        self._settings = settings
        self._standby = standby
        self._replicas = replicas
        self._instances: dict[str, bytes] = {}
        """What the view was made from: a quiet cluster shows the same for hours."""
        self._started_at = asyncio.get_running_loop().time()
        self.own = Registration(instance, elections.registry, record, settings, writes_fail, observer)
        self._spread_at: list[float] = []
        self._abandoned: dict[tuple[int, str], spread.Abandoned] = {}

    def doubts_store(self) -> bool:
        """Return whether to try writes often: the store may fail for this daemon, or for one that is not ready."""
        return self.own.writes_fail() or any(each.readiness != "ready" for each in self.view.records.values())

    async def run(self) -> None:
        """Look at the daemons, and start what follows, again and again."""
        while True:
            self._weigh()
            await self.own.settle()
            if await self._look():
                self._start_moves()
                self._leave_terms()
            await asyncio.sleep(VIEW_INTERVAL_SECONDS)

    async def evacuate(self) -> None:
        """Transfer all shards of this daemon, as far as others can take them in time. `run` must have ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EVACUATION_SECONDS
        self.own.leaving = True
        self._abandoned.clear()  # The successor may have been restarted since.
        await self.own.settle()
        while loop.time() < deadline:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._look()  # Without an answer, the last view counts.
            self._start_moves(EVACUATION_TRANSFER_SECONDS)
            in_flight = [each.transfer.done for each in self._controllers if each.transfer is not None]
            if not in_flight:
                return
            await asyncio.wait(in_flight, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        log.warning("daemon.evacuation_incomplete", limit_seconds=EVACUATION_SECONDS)
        transfers = [each.transfer for each in self._controllers if each.transfer is not None]
        # A successor that was ready may be frozen since. Only this daemon would pass it over.
        if begun := [each.done for each in transfers if each.stopped_at is not None]:
            await asyncio.wait(begun, timeout=2 * BEGIN_TIMEOUT_SECONDS)

    async def transfer(self, shard: int, daemon: str, token: str) -> str | None:
        """See `controller.context.leader_context.Operations`."""
        failed = self._abandoned.get((shard, daemon))
        if failed is not None and failed.token == token:
            return failed.problem
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONTEND_SECONDS
        await self._look()  # The operator may just have ended a maintenance. Without an answer, the last view counts.
        problem = self._transfer_problem(shard, daemon)
        while problem == _not_contending(shard, daemon) and loop.time() < deadline:
            await asyncio.sleep(CONTEND_CHECK_SECONDS)
            problem = self._transfer_problem(shard, daemon)
        if problem is not None:
            return problem
        if daemon == self._instance:
            self._elections.keep(shard)
            return None
        outcome = self._controllers[shard].start_transfer(daemon, "operator")
        if not outcome.done():
            outcome.add_done_callback(lambda done: self._note(shard, daemon, done.result(), token))
        # Shielded: one operator who gives up must not end the transfer for another one.
        return await asyncio.shield(outcome)

    async def set_maintenance(self, daemon: str, *, on: bool, token: str) -> str | None:
        """See `controller.context.leader_context.Operations`. A daemon that is not live cannot begin one."""
        live = daemon in self.view.records
        if on and not live:
            return f"no daemon {daemon!r} is live: headgate daemon list"
        try:
            if not await self._elections.registry.set_maintenance(daemon, on=on, token=token, new=live):
                return f"no daemon {daemon!r} is live, or was in maintenance: headgate daemon list"
        except ElectionsUnreachableError as error:
            return str(error)
        log.info("daemon.maintenance", daemon=daemon, on=on)
        return None

    async def set_shards(self, shards: int, before: int) -> str | None:
        """See `controller.context.leader_context.Operations`."""
        try:
            await self._elections.registry.change_config(partial(grown, shards=shards, before=before))
        except HeadgateError as error:
            return str(error)
        log.info("cluster.shards_set", shards=shards, before=before)
        return None

    async def raise_level(self, level: int) -> str | None:
        """See `controller.context.leader_context.Operations`."""
        if not await self._look() or (known := self.feature_level) is None:
            return "ZooKeeper cannot be reached; try again"
        if level <= known.level:
            return None
        if level != known.newest or known.problems:
            reasons = known.problems or (f"the newest level that a live daemon supports is {known.newest}",)
            return f"not every daemon supports feature level {level}: {'; '.join(reasons)}"
        try:
            await self._name_level(level)  # Before ZooKeeper has it: it may lose it.
            await self._elections.registry.change_config(
                lambda config: config | {"level": level} if level_of(config) == known.level else None
            )
        except (ElectionsUnreachableError, StoreUnavailableError) as error:
            return str(error)
        log.info("cluster.level_raised", level=level, before=known.level)
        return None

    @property
    def feature_level(self) -> FeatureLevel | None:
        """The cluster's level, and which one it could have; None: the level is unknown."""
        records = {self._instance: self.own.record, **self.view.records}
        levels = {name: record.levels for name, record in records.items()}
        return judged(self.view.level, levels, self.view.maintenance) if self.view.level else None

    @property
    def state(self) -> SpreadState:
        """What the spread may do with this daemon; see `state_of`."""
        return "leaving" if self.own.leaving else self._state(self._instance, self.own.record)

    def state_of(self, daemon: str) -> SpreadState | None:
        """Return what the spread may do with another daemon, as ZooKeeper showed it last; None: it is not live."""
        record = self.view.records.get(daemon)
        return None if record is None else self._state(daemon, record)

    def _state(self, daemon: str, record: InstanceRecord) -> SpreadState:
        if record.leaving:
            return "leaving"
        if daemon in self.view.maintenance:
            return "maintenance"
        if record.readiness in {"no_broker", "no_store"}:
            return record.readiness
        return "settled" if record.settled else "settling"

    def _transfer_problem(self, shard: int, daemon: str) -> str | None:
        if daemon in self.view.maintenance:
            return f"daemon {daemon!r} is in maintenance: headgate daemon drain {daemon} --off"
        if daemon == self._instance:
            transfer = self._controllers[shard].transfer
            return None if transfer is None else f"shard {shard} is being transferred to daemon {transfer.successor!r}"
        if daemon not in self.view.records:
            return f"no daemon {daemon!r} is live: headgate daemon list"
        if (lacks := LACKS.get(self.view.records[daemon].readiness)) is not None:
            return f"daemon {daemon!r} {lacks}: see its log"
        queue = self._elections.queue(shard)
        return _not_contending(shard, daemon) if queue is None or daemon not in queue.waiting else None

    def _weigh(self) -> None:
        others = {name: record.loads for name, record in self.view.records.items() if name != self._instance}
        holders = {shard: each.holder for shard, each in self._seen_queues().items()}
        self.own.weigh([each.leader for each in self._controllers if each.leader is not None], holders, others)

    async def _look(self) -> bool:
        """Refresh the view; return whether ZooKeeper answered.

        Raises ConfigError: the cluster has a feature level that this version does not support. An older daemon that
        starts while the level is raised finds it here.
        """
        instances = await self._elections.registry.instances()
        maintenance = await self._elections.registry.maintenance()
        config = await self._elections.registry.config()
        if instances is None or maintenance is None:
            return False
        level = max(level_of(config or {"level": 0}), self.view.level)
        if level and (problem := join_problem(level, self.own.record.version, self.own.record.levels)) is not None:
            raise ConfigError(problem)
        if (instances, maintenance, level) != (self._instances, self.view.maintenance, self.view.level):
            self._instances = instances
            self.view = View({name: read_record(data) for name, data in instances.items()}, maintenance, level)
            # A daemon that is gone may be able to lead when it returns.
            self._abandoned = {key: each for key, each in self._abandoned.items() if key[1] in instances}
        return True

    def _start_moves(self, timeout_seconds: float = TRANSFER_TIMEOUT_SECONDS) -> None:
        """Start what the plan wants of this daemon now."""
        now = asyncio.get_running_loop().time()
        self._spread_at = [at for at in self._spread_at if now - at < spread.BUDGET_SECONDS]
        enabled, replicas = self._settings().enabled, self._replicas()
        seen_here = self.own.record.readiness, self.own.leaving, self._abandoned.copy()
        if self.decided.seen != (seen := (self.view, self._seen_queues(), seen_here, enabled, replicas)):
            daemons, queues = self._live_daemons(), self._shard_queues()
            free = [replace(q, fixed=q.fixed or not enabled) for q in queues]
            following = successors(daemons, free, replicas)
            self.decided = Decided(seen, daemons, spread.plan(daemons, map(self._with_abandoned, queues)), following)
            self._standby.assign(following)
        led = [each for each in self._controllers if each.leadership.role is Role.LEADING]
        for controller in led:
            for first in self.decided.successors.get(controller.shard, ())[:1]:
                self._elections.place_next(controller.shard, first)
        moves = [each for each in self.decided.plan.moves if enabled or each.reason != "spread"]
        if not moves:
            return
        history = spread.History(
            led_since={each.shard: now if each.leader is None else each.leader.timers.began_at for each in led},
            started_at=self._started_at,
            without_topics=frozenset(
                each.shard for each in led if each.leader is not None and not each.leader.state.topics
            ),
            in_flight=frozenset(each.shard for each in self._controllers if each.transfer is not None),
            spread_at=self._spread_at,
            abandoned=self._abandoned,
        )
        settle_seconds = self._settings().settle_seconds
        for move in spread.startable(moves, self._instance, history, now, settle_seconds=settle_seconds):
            self._start(move, now, timeout_seconds)

    def _leave_terms(self) -> None:
        """Leave shards to others before their terms: after a start of all daemons, or because this one cannot lead."""
        lacks, spreads = self.own.record.readiness in LACKS, self._settings().enabled
        in_line = [
            each.shard
            for each in self._controllers
            if (spreads and each.waits_to_restore) or (lacks and each.leadership.role is Role.CATCHING_UP)
        ]
        if not in_line:
            return
        for shard in left_to_others(self._instance, in_line, self._seen_queues(), self.decided.daemons):
            log.info("term.left", shard=shard)
            self._controllers[shard].post(Event.TERM_LEFT)

    def _start(self, move: spread.Move, now: float, timeout_seconds: float) -> None:
        log.info("transfer.started", shard=move.shard, successor=move.target, reason=move.reason)
        if move.reason == "spread":
            self._spread_at.append(now)
        outcome = self._controllers[move.shard].start_transfer(move.target, move.reason, timeout_seconds)
        outcome.add_done_callback(lambda done: self._note(move.shard, move.target, done.result()))

    def _note(self, shard: int, target: str, problem: str | None, token: str | None = None) -> None:
        if problem is None:
            if not self.own.leaving:
                self._abandoned = {key: each for key, each in self._abandoned.items() if key[0] != shard}
            return
        before = self._abandoned.get((shard, target))
        count = 1 if before is None else before.count + 1
        self._abandoned[shard, target] = spread.Abandoned(count, asyncio.get_running_loop().time(), problem, token)

    def _live_daemons(self) -> list[spread.LiveDaemon]:
        return [
            spread.LiveDaemon(
                name,
                settled=record.settled,
                in_maintenance=name in self.view.maintenance,
                leaving=record.leaving or (name == self._instance and self.own.leaving),
                readiness=self.own.record.readiness if name == self._instance else record.readiness,
            )
            for name, record in self.view.records.items()
        ]

    def _shard_queues(self) -> list[spread.ShardQueue]:
        seen = self._seen_queues()
        reports = {name: record.loads for name, record in self.view.records.items()}
        loads = shard_loads({shard: each.holder for shard, each in seen.items()}, reports)
        weight = spread.weights({shard: loads.get(shard, 0) for shard in seen})
        return [
            spread.ShardQueue(shard, each.holder, each.waiting, fixed=each.fixed, weight=weight[shard])
            for shard, each in seen.items()
        ]

    def _with_abandoned(self, queue: spread.ShardQueue) -> spread.ShardQueue:
        """Add what only this daemon knows. All daemons must agree on successors, which are decided without it."""
        counts = spread.abandonments(self._abandoned, queue.shard, leaving=self.own.leaving)
        return replace(queue, abandoned=counts) if counts else queue

    def _seen_queues(self) -> dict[int, SeenQueue]:
        queues = ((each.shard, self._elections.queue(each.shard)) for each in self._controllers)
        return {shard: queue for shard, queue in queues if queue is not None}


def _not_contending(shard: int, daemon: str) -> str:
    return f"daemon {daemon!r} does not contend for shard {shard}: see its log"
