"""Ask who leads one shard, and tell those who want to know.

headgate.client.decisions.leader_belief decides when to ask and what to believe. Questions go the
way of requests. Answers arrive on the client's own topic, to which only daemons may publish.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from headgate.client.decisions.leader_belief import LeaderBelief, Question
from headgate.client.handlers import Handlers
from headgate.protocol.announcements import LeaderAnnouncement
from headgate.protocol.replies import LeaderReply, Rejected, Reply
from headgate.protocol.requests import DescribeLeader

MAX_QUESTIONS: Final = 16
"""Earlier questions that may still be answered."""

LeaderHandler = Callable[[LeaderAnnouncement], None]
SendQuestion = Callable[[DescribeLeader, Callable[[Reply], None]], int]
"""Send the body to the shard's leaders; each reply goes to the handler. Returns the request id."""


class LeaderWatch:
    def __init__(
        self, shard: int, *, send: SendQuestion, forget: Callable[[int], None], jitter: Callable[[], float]
    ) -> None:
        """``forget`` gets the ids of requests whose replies are no longer expected."""
        self.handlers: Handlers[LeaderHandler] = Handlers()
        """Called when the leader changes, and when it announces itself again."""
        self._shard = shard
        self._send = send
        self._forget = forget
        self._jitter = jitter
        self._belief = LeaderBelief()
        self._questions: deque[int] = deque()
        self._connected = False
        self._timer: asyncio.TimerHandle | None = None
        self.heard_of_leader = False
        self.said = ""
        """Why a leader refused to say whether it leads: a quota holds its replies back. Empty: it did not."""
        self.watched = False
        """Whether the announcements on the topic of this shard are subscribed."""

    @property
    def leader(self) -> LeaderAnnouncement | None:
        return self._belief.leader

    def announced(self, announcement: LeaderAnnouncement) -> None:
        """Consider an announcement on the topic of this shard; one for another shard is not ours."""
        if announcement.shard != self._shard:
            return
        self.heard_of_leader = True
        if self._belief.announced(announcement, asyncio.get_running_loop().time()):
            self._notify(announcement)
        self._set_timer()

    def prompt(self, heard_epoch: int = 0) -> None:
        self._belief.prompt(asyncio.get_running_loop().time(), heard_epoch)
        self._set_timer()

    def connection_changed(self, connected: bool) -> None:
        """Ask again what was asked during the outage."""
        self._connected = connected
        if connected and self._belief.ask_at is not None:
            self._ask()
        else:
            self._set_timer()

    def close(self) -> None:
        self._connected = False
        self._set_timer()

    def _ask(self) -> None:
        question = self._belief.ask(asyncio.get_running_loop().time(), self._jitter())
        body = DescribeLeader(heard_epoch=question.heard_epoch)
        self._questions.append(self._send(body, partial(self._on_reply, question)))
        if len(self._questions) > MAX_QUESTIONS:
            self._forget(self._questions.popleft())
        self._set_timer()

    def _on_reply(self, question: Question, reply: Reply) -> None:
        match reply.body:
            case LeaderReply(instance=instance, window=window):
                epoch, ledger_id = reply.leader_epoch, reply.ledger_id
                leader = LeaderAnnouncement(
                    shard=self._shard, leader_epoch=epoch, instance=instance, window=window, ledger_id=ledger_id
                )
                if self._belief.answered(question, leader):
                    self._notify(leader)
                self._set_timer()
                self.said = ""
            case Rejected(reason=reason):
                self.said = reason

    def _notify(self, leader: LeaderAnnouncement) -> None:
        for handler in self.handlers:
            handler(leader)

    def _set_timer(self) -> None:
        ask_at = self._belief.ask_at if self._connected else None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if ask_at is None:
            return
        loop = asyncio.get_running_loop()
        if ask_at <= loop.time():
            self._ask()
        else:
            self._timer = loop.call_at(ask_at, self._ask)
