"""Keeps the shards spread over the daemons: one daemon's share of the work.

`controller.leadership.spread` decides where each shard should be, from ZooKeeper's view, and
`controller.leadership.transfer_pace` which transfers this daemon starts. This module reads the view, registers this
daemon, starts transfers of shards that this daemon leads, and gives all of them away before it stops.

1. Without contact to ZooKeeper nothing is started.
2. This daemon is settled once its session has lasted for ``settle_seconds``. A new session begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.leader.shard_controller import TRANSFER_TIMEOUT_SECONDS, ShardController
from controller.leadership.election import Elections, ElectionsUnreachableError, SeenQueue
from controller.leadership.instance_record import InstanceRecord, encode_record, read_record
from controller.leadership.spread import LiveDaemon, Move, Plan, ShardQueue, plan
from controller.leadership.transfer_pace import BUDGET_SECONDS, History, startable
from controller.leadership.transitions import Role
from controller.settings.load import SpreadSettings

VIEW_INTERVAL_SECONDS: Final = 2.0
"""Pause between two looks at the live daemons."""
EVACUATION_SECONDS: Final = 10.0
"""Longest time in which a stopping daemon transfers its shards. It hands over the others as without a successor."""
EVACUATION_TRANSFER_SECONDS: Final = 3.0
"""Longest wait for one successor meanwhile."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """The daemons as ZooKeeper listed them last."""

    records: Mapping[str, InstanceRecord] = field(default_factory=dict)
    maintenance: frozenset[str] = frozenset()


class ShardSpreader:
    """One per daemon."""

    def __init__(
        self,
        *,
        instance: str,
        elections: Elections,
        controllers: Sequence[ShardController],
        settings: Callable[[], SpreadSettings],
        record: InstanceRecord,
    ) -> None:
        """``record`` is what this daemon registers; whether it is settled or leaving is added."""
        self.view = View()
        self.plan = Plan({}, ())
        self._instance = instance
        self._elections = elections
        self._controllers = controllers
        self._settings = settings
        self._record = record
        self._live_since = asyncio.get_running_loop().time()
        self._spread_at: list[float] = []
        self._abandoned_at: dict[int, float] = {}
        self._leaving = False

    async def register(self) -> None:
        """Register this daemon as live. Returns at once."""
        await self._elections.register_instance(self._instance, encode_record(self._record))

    def session_lost(self) -> None:
        """Begin to settle again (rule 2)."""
        self._live_since = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Look at the daemons, and start what follows, again and again."""
        while True:
            await self._settle()
            if await self._look():
                self._start_moves()
            await asyncio.sleep(VIEW_INTERVAL_SECONDS)

    async def evacuate(self) -> None:
        """Transfer all shards of this daemon, as far as others can take them in time. `run` must have ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EVACUATION_SECONDS
        self._leaving = True
        await self._settle()
        in_flight: set[asyncio.Future[str | None]] = set()
        while loop.time() < deadline:
            in_flight |= self._start_moves(EVACUATION_TRANSFER_SECONDS)
            if not in_flight:
                return
            _, in_flight = await asyncio.wait(
                in_flight, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
        log.warning("daemon.evacuation_incomplete", limit_seconds=EVACUATION_SECONDS)

    async def transfer(self, shard: int, daemon: str) -> str | None:
        """See `controller.leader.operator_commands.Operations`."""
        problem = self._transfer_problem(shard, daemon)
        if problem is not None:
            return problem
        # Shielded: one operator who gives up must not end the transfer for another one.
        return await asyncio.shield(self._controllers[shard].start_transfer(daemon, "operator"))

    async def set_maintenance(self, daemon: str, *, on: bool) -> str | None:
        """See `controller.leader.operator_commands.Operations`. A daemon that is not live cannot begin one."""
        if on and daemon not in self.view.records:
            return f"no daemon {daemon!r} is live: headgate daemon list"
        try:
            await self._elections.set_maintenance(daemon, on=on)
        except ElectionsUnreachableError as error:
            return str(error)
        log.info("daemon.maintenance", daemon=daemon, on=on)
        return None

    @property
    def state(self) -> str:
        """What the spread may do with this daemon: ``settled``, ``settling``, ``maintenance`` or ``leaving``."""
        if self._leaving:
            return "leaving"
        if self._instance in self.view.maintenance:
            return "maintenance"
        return "settled" if self._record.settled else "settling"

    def _transfer_problem(self, shard: int, daemon: str) -> str | None:
        if daemon not in self.view.records:
            return f"no daemon {daemon!r} is live: headgate daemon list"
        if daemon in self.view.maintenance:
            return f"daemon {daemon!r} is in maintenance: headgate daemon drain {daemon} --off"
        queue = self._elections.queue(shard)
        if queue is None or daemon not in queue.waiting:
            return f"daemon {daemon!r} does not contend for shard {shard}: see its log"
        return None

    async def _settle(self) -> None:
        """Register whether this daemon is settled, or leaving, when that has changed."""
        lasted = asyncio.get_running_loop().time() - self._live_since
        record = InstanceRecord(
            url=self._record.url,
            version=self._record.version,
            settled=lasted >= self._settings().settle_seconds,
            leaving=self._leaving,
        )
        if record != self._record:
            self._record = record
            await self.register()

    async def _look(self) -> bool:
        """Refresh the view; return whether ZooKeeper answered."""
        instances = await self._elections.instances()
        maintenance = await self._elections.maintenance()
        if instances is None or maintenance is None:
            return False
        self.view = View({name: read_record(data) for name, data in instances.items()}, maintenance)
        return True

    def _start_moves(self, timeout_seconds: float = TRANSFER_TIMEOUT_SECONDS) -> set[asyncio.Future[str | None]]:
        """Start what the plan wants of this daemon now; return the outcomes to wait for."""
        now = asyncio.get_running_loop().time()
        self._spread_at = [at for at in self._spread_at if now - at < BUDGET_SECONDS]
        self.plan = plan(self._live_daemons(), self._queues())
        led = [each for each in self._controllers if each.leadership.role is Role.LEADING]
        history = History(
            led_since={each.shard: now if each.led_since is None else each.led_since for each in led},
            in_flight=frozenset(each.shard for each in led if each.transfer is not None),
            spread_at=self._spread_at,
            abandoned_at=self._abandoned_at,
        )
        moves = [each for each in self.plan.moves if self._settings().enabled or each.reason != "spread"]
        settle_seconds = self._settings().settle_seconds
        return {
            self._start(move, now, timeout_seconds)
            for move in startable(moves, self._instance, history, now, settle_seconds=settle_seconds)
        }

    def _start(self, move: Move, now: float, timeout_seconds: float) -> asyncio.Future[str | None]:
        log.info("transfer.started", shard=move.shard, successor=move.target, reason=move.reason)
        if move.reason == "spread":
            self._spread_at.append(now)
        outcome = self._controllers[move.shard].start_transfer(move.target, move.reason, timeout_seconds)
        outcome.add_done_callback(lambda done: self._note(move.shard, done.result()))
        return outcome

    def _note(self, shard: int, problem: str | None) -> None:
        if problem is None:
            self._abandoned_at.pop(shard, None)
        else:
            self._abandoned_at[shard] = asyncio.get_running_loop().time()

    def _live_daemons(self) -> list[LiveDaemon]:
        return [
            LiveDaemon(
                name,
                settled=record.settled,
                in_maintenance=name in self.view.maintenance,
                leaving=record.leaving or (name == self._instance and self._leaving),
            )
            for name, record in self.view.records.items()
        ]

    def _queues(self) -> list[ShardQueue]:
        seen: dict[int, SeenQueue | None] = {
            each.shard: self._elections.queue(each.shard) for each in self._controllers
        }
        return [
            ShardQueue(shard, each.holder, each.waiting, fixed=each.fixed)
            for shard, each in seen.items()
            if each is not None
        ]
