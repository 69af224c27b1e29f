"""Announce one leader: retained at the broker, and in reply to the question of a client.

A program that can publish to the leader topic can replace the retained announcement. Clients believe
replies only, so a foreign announcement costs them a question. The leader publishes its own again
after a barrier: without that chunk the foreign one may be that of its successor.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import structlog

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from headgate.log.report_limit import ReportLimit
from headgate.protocol import codec
from headgate.protocol.announcements import LeaderAnnouncement
from headgate.protocol.replies import LeaderReply
from headgate.protocol.requests import DescribeLeader
from metrics import events
from shard.requests.handlers import AfterBarrier, AfterChunk, Outcome
from shard.state.dedup_window import WINDOW
from shard.state.shard_state import ShardState

CORRECTION_INTERVAL_SECONDS: Final = 1.0
"""Between two corrections, so that two programs that replace each other's announcement do so slowly."""
LOG_INTERVAL_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class Announcer:
    """What one leader says about itself. It is silent unless ``serving``."""

    def __init__(
        self,
        state: ShardState,
        context: LeaderContext,
        commit: GroupCommit,
        *,
        publish: Callable[[LeaderAnnouncement], None],
        serving: Callable[[], bool],
    ) -> None:
        self._announcement = LeaderAnnouncement(
            shard=state.shard,
            leader_epoch=state.term.leader_epoch,
            instance=context.instance,
            window=WINDOW,
            ledger_id=context.ledger_id,
        )
        self._publish = publish
        self._serving = serving
        self._commit = commit
        self._observer = context.observer
        self._own: set[bytes] = set()
        """Payloads that this leader has published; the broker returns each."""
        self._correcting = False
        self._corrected_at = -math.inf
        self._logged = ReportLimit(LOG_INTERVAL_SECONDS)

    def announce(self) -> None:
        """Publish the announcement. Without a broker connection the next connection does."""
        if self._serving():
            self._own.add(codec.encode(self._announcement))
            self._publish(self._announcement)

    def describe(self, request: DescribeLeader, _: str) -> Outcome:
        """Reply to a client that asks who leads; after a barrier if it has heard of a later term."""
        leader = self._announcement
        body = LeaderReply(instance=leader.instance, window=leader.window)
        if request.heard_epoch <= leader.leader_epoch:
            return AfterChunk(self._commit.durable, body)
        return AfterBarrier(body)

    def seen(self, payload: bytes) -> None:
        """Consider what was published as the announcement of this shard, unless it is of another ledger's leader."""
        of_other = b"ledger_id" in payload and self._announcement.ledger_id not in payload
        if of_other or payload in self._own or self._correcting or not self._serving():
            return
        self._correcting = True
        loop = asyncio.get_running_loop()
        due_at = max(loop.time(), self._corrected_at + CORRECTION_INTERVAL_SECONDS)
        loop.call_at(due_at, self._commit.after_barrier, self._correct)

    def _correct(self) -> None:
        now = asyncio.get_running_loop().time()
        self._correcting, self._corrected_at = False, now
        if not self._serving():
            return
        self._observer.observe(events.ForeignAnnouncementSeen(shard=self._announcement.shard))
        if self._logged.is_due(now):
            log.warning(
                "leader.announcement_replaced",
                shard=self._announcement.shard,
                remedy="let only daemons publish to the leader topics: headgate access export",
            )
        self.announce()
