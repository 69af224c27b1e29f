"""What a leader does by the clock: deadlines, scaling, producers that are gone, and whether it may still lead."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from controller.chunk_writer.group_commit import GroupCommit, TermEndedError
from controller.context.leader_context import LeaderContext
from controller.context.step_driver import StepDriver
from controller.leadership.policy import safety
from controller.leadership.policy.transitions import Event
from controller.scaling.autoscaler import Autoscaler
from shard.requests import producer_expiry
from shard.requests.tick_pace import TICK_INTERVAL_SECONDS, tick_pause_seconds
from shard.state.ledger_time import IDLE_CHUNK_MS
from shard.state.shard_state import ShardState
from shard.steps import Steps


@dataclass(eq=False, repr=False)
class TermTimers:
    state: ShardState
    context: LeaderContext
    commit: GroupCommit
    driver: StepDriver
    autoscaler: Autoscaler
    tick: Callable[[], Steps[None]]
    """What the subscriptions do at each tick."""
    _broker_lost_at: float | None = None
    began_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """The term's clock starts here; deadlines of requests are ages of the term."""

    def broker_changed(self, connected: bool) -> None:
        """Note a connection to the broker, or its loss."""
        if connected:
            self._broker_lost_at = None
        elif self._broker_lost_at is None:
            self._broker_lost_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Check deadlines, the broker connection, and for a successor while idle."""
        loop = asyncio.get_running_loop()
        looked_at, looks, durable = loop.time(), 0, self.commit.durable
        durations = self.context.ingest.unreachable_seconds, *self.context.subscriptions.deadline_seconds
        pause_seconds = TICK_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(pause_seconds)
            await self.driver.complete(self.tick())
            self._expire_producers()
            self.autoscaler.tick()
            if self.context.now_ms() - self.state.at_ms >= IDLE_CHUNK_MS:
                self.commit.barrier()
            lost_seconds = 0.0 if self._broker_lost_at is None else loop.time() - self._broker_lost_at
            if safety.unreachable_too_long(lost_seconds, self.context.ingest.unreachable_seconds):
                reason = f"the broker has been unreachable for {lost_seconds:.1f} s"
                raise TermEndedError(Event.BROKER_UNREACHABLE, reason)
            pause_seconds = tick_pause_seconds(*durations, idle=self.commit.is_idle)
            # A leader without requests writes a chunk every 50 minutes, which is no reason to look each second again.
            looks, durable = 0 if self.commit.durable > durable + 1 else looks, self.commit.durable
            look_pause_seconds = safety.look_pause_seconds(looks, contended=self.commit.is_contended)
            if loop.time() - looked_at > look_pause_seconds - TICK_INTERVAL_SECONDS / 2:
                looked_at, looks = loop.time(), looks + 1
                await self.commit.check_for_successor()

    def _expire_producers(self) -> None:
        expired = producer_expiry.expired_producers(
            self.state.producers,
            age_ms=partial(self.state.time.age_ms, now_ms=self.context.now_ms()),
            idle_ms=int(self.context.ingest.producer_idle_seconds * 1000),
            max_anonymous=self.context.ingest.max_producers,
            durable=self.commit.durable,
        )
        if expired is not None:
            self.commit.propose(expired)
