"""The terms of this daemon in one shard: begins one with its chunk, serves it, hands it over, and ends it.

`controller.leadership.policy.safety` decides whether a term has begun. A topic of another shard ends the daemon: it
would store new topics where they do not belong.
"""

import asyncio
from collections.abc import Callable

import structlog

from controller.chunk_writer.builder import ChunkBuilder
from controller.chunk_writer.group_commit import TermEndedError
from controller.leader.follower import Follower, ShardContext
from controller.leader.leader import ShardLeader
from controller.leadership.policy import safety
from controller.leadership.policy.transitions import Event, Leadership
from headgate.errors import ConfigError, LedgerError, OutcomeUnknownError
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.model.layout import ShardMap
from headgate.process.background import end_tasks
from metrics import events
from metrics.label_values import StoreOperation
from shard.state.shard_state import ShardState

WRITE_TIMEOUT_SECONDS = 10.0
BROKER_INTERVAL_SECONDS = 0.25
"""How often a contender that has read the ledger looks whether it reaches the broker."""
HANDOVER_TIMEOUT_SECONDS = 5.0
"""Longest wait for the last commit during a handover."""


async def begin_term(ledger: Ledger, state: ShardState, instance: str, now_ms: int, term_id: int) -> bool:
    """Create the chunk that makes ``instance`` the leader after ``state``, and apply it. Raises like `Ledger.append`.

    False: it was created, and makes no leader, because a snapshot includes its number.
    """
    entry = e.TermStarted(leader_epoch=state.term.leader_epoch + 1, instance=instance, term_id=term_id)
    builder = ChunkBuilder()
    builder.add(entry)
    number, at_ms = state.chunk + 1, max(state.at_ms, now_ms)
    data = builder.encode(
        shard=state.shard,
        number=number,
        leader_epoch=entry.leader_epoch,
        at_ms=at_ms,
        term_id=term_id,
        previous_term_id=state.terms.newest_id,
    )
    await ledger.append(number, data)
    if safety.starts_no_term(number, await ledger.snapshots()):
        return False
    state.apply_all((entry,), chunk=number, at_ms=at_ms)
    return True


class Term:
    """One term at a time. ``leader`` exists from its chunk to its end."""

    def __init__(
        self,
        context: ShardContext,
        follower: Follower,
        post: Callable[[Event], None],
        leadership: Callable[[], Leadership],
    ) -> None:
        self.leader: ShardLeader | None = None
        self.ended = 0
        """How many terms of this daemon have ended in this shard."""
        self.attempts = 0
        """Attempts to start a term since the last successful one."""
        self._context = context
        self._follower = follower
        self._post = post
        self._leadership = leadership
        self._shard = context.ledger.shard
        self._log = structlog.get_logger(__name__).bind(shard=self._shard)
        self._starting: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[str | None] | None = None
        """Serves the term. Its result says why the term failed; None if it has not."""

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Read the ledger to its end, and write the term chunk. The outcome is posted."""
        self._follower.restoring &= self._follower.reading.locked()
        self._starting = tasks.create_task(self._start(), name=f"catch-up-{self._shard}")

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Serve the term that was started until it ends, which is posted."""
        assert self.leader is not None, "no leader to serve"
        self._serving = tasks.create_task(self._serve(self.leader), name=f"leader-{self._shard}")

    async def hand_over(self) -> None:
        """Stop accepting requests, and commit the accepted ones if that is possible in time, while the term lasts."""
        assert self.leader is not None, "no leader to hand over"
        assert self._serving is not None, "no term to hand over"
        committing = asyncio.create_task(self.leader.hand_over())
        either = [committing, self._serving]
        try:
            ended, _ = await asyncio.wait(either, timeout=HANDOVER_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(committing)
        if not ended:
            # Uncommitted requests were not answered: their clients send them to the next leader.
            self._log.warning("handover.incomplete", limit_seconds=HANDOVER_TIMEOUT_SECONDS)

    async def end(self, reason: str) -> None:
        """End the term, or the attempt to start one, and discard what is not durable."""
        for task in (self._starting, self._serving):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        if self.leader is not None:
            self._context.observer.observe(events.TermEnded(shard=self._shard, reason=reason))
            ended = self._log.bind(leader_epoch=self.leader.leader_epoch, reason=reason)
            serving = self._serving
            detail = None if serving is None or serving.cancelled() else serving.result()
            if detail is None:
                ended.info("term.ended")
            else:
                ended.warning("term.ended", detail=detail)
            self.leader.state.release()
            self.leader = None
            self.ended += 1
        self._starting = self._serving = None  # A task refers to its leader, also when it is done.

    async def _start(self) -> None:
        loop, follower = asyncio.get_running_loop(), self._follower
        began = loop.time()
        operation: StoreOperation = "read"
        async with follower.reading:
            try:
                # A missing number may be a hole and not the end: writing into it would fork the ledger.
                chunks = await follower.catch_up(urgent=True)
                self._require_own_topics()
                restore_seconds = loop.time() - began
                await self._reach_broker()
                operation = "create"
                await self._write_term_chunk()
            except safety.FAILURES as error:
                event = safety.failure(error)
                if event is Event.OUTCOME_UNKNOWN:
                    self._log.warning("term.outcome_unknown", error=str(error))
                follower.report(error, operation)
                self._post(event)
            else:
                follower.recover()
                self._context.standby.stop_following(self._shard)
                self._lead(chunks, restore_seconds)

    def _lead(self, chunks: int, restore_seconds: float) -> None:
        state, observer = self._follower.take_state(), self._context.observer
        self.leader = self._context.new_leader(state, lambda: safety.yields_to_contender(self._leadership()))
        self.attempts = 0
        observer.observe(events.LedgerRestored(shard=self._shard, seconds=restore_seconds, chunks=chunks))
        observer.observe(events.TermStarted(shard=self._shard))
        self._log.info(
            "term.started",
            leader_epoch=state.term.leader_epoch,
            chunk=state.chunk,
            topics=len(state.topics),
            restore_seconds=round(restore_seconds, 3),
        )
        self._post(Event.TERM_STARTED)

    def _require_own_topics(self) -> None:
        """Raise ConfigError, which ends the daemon, if the ledger places a topic by another number of shards."""
        state, known = self._follower.state, self._context.shards()
        if (stored := ShardMap(state.ids.shard_counts)).extends(known.counts):
            self._context.found_shards(known := stored)
        if (problem := known.misplaced(self._shard, state.topics)) is not None:
            raise ConfigError(
                f"cluster.shards is {known.shards}, but {problem}. Use that number, and another cluster.name "
                "if this one was stored in ZooKeeper"
            )

    async def _reach_broker(self) -> None:
        """Wait until the term may begin: without the broker it would serve no client."""
        transport, waited = self._context.transport, False
        while not safety.begins_term(self._leadership(), reaches_broker=transport.connected, waited=waited):
            if not waited:
                self._log.info("term.waits_for_broker", chunk=self._follower.state.chunk)
            waited = True
            await asyncio.sleep(BROKER_INTERVAL_SECONDS)

    async def _write_term_chunk(self) -> None:
        follower, context = self._follower, self._context
        now_ms, term_id = context.now_ms(), context.new_term_id()
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            if not await begin_term(context.ledger, follower.state, context.instance, now_ms, term_id):
                number = follower.take_state().chunk + 1
                raise OutcomeUnknownError(f"chunk {number} was created, but a snapshot includes that number")
            if follower.state.chunk == follower.state.term.leader_epoch:  # So far there are chunks of terms only.
                await context.ledger.name_begun()

    async def _serve(self, leader: ShardLeader) -> str | None:
        try:
            await leader.serve()
        except TermEndedError as error:
            if error.event is Event.LEDGER_UNREADABLE:
                self._follower.report(LedgerError(str(error)), "read")
            self._post(error.event)
            return str(error)
        return None
