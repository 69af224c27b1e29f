"""Decide which leader of one shard a client believes in, when it asks, and until when a command is valid. Pure.

Announcements are retained, and any program that can publish to their topic can forge one, with any epoch.
So a client believes replies only:

1. An announcement that differs from the belief is a reason to ask, and changes nothing.
2. The question names the highest epoch that the client has heard of. A leader of that epoch or a
   later one replies at once. A leader of a lower epoch replies after a barrier: the chunk proves
   that the named term had not begun when the client asked.
3. A reply of a higher epoch is believed. One of a lower epoch is believed if the belief has not
   changed since the question: rule 2 proves that the present belief is false.
4. A question is repeated until it is answered, with growing pauses.
5. Reasons to ask that come closely together wait, a second at most: forged announcements cost little.
   A later leader that replies ends such a series: leaders that follow each other are learned at once.
"""

import math
from dataclasses import dataclass
from typing import Final

from headgate.backoff import Backoff
from headgate.protocol.codec import LeaderAnnouncement

REPEAT_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=5.0, jitter=1.0, shortest_seconds=0.05)
"""Between two attempts of one question."""
PROMPT_BACKOFF: Final = Backoff(first_seconds=0.025, longest_seconds=1.0, jitter=0)
"""Before a new question, after several in a row."""
CALM_SECONDS: Final = 10.0
"""After this long without a question the next one does not wait."""


@dataclass(frozen=True, slots=True)
class Question:
    """One attempt to learn who leads. ``number`` is the reason to ask, ``believed_epoch`` 0: no belief."""

    number: int
    heard_epoch: int
    believed_epoch: int


class LeaderBelief:
    """What one client believes about the leader of one shard. ``now`` is seconds of any steady clock."""

    def __init__(self) -> None:
        self.leader: LeaderAnnouncement | None = None
        self.ask_at: float | None = None
        """When to call `ask`; None: there is nothing to ask."""
        self._heard_epoch = 0
        """Named by the last reason to ask, 0 if none was."""
        self._number = 0
        """The number of the last reason to ask."""
        self._attempts = 0
        self._asked_number = 0
        self._asked_at = -math.inf
        self._in_a_row = 0
        """Questions since it was calm, or since one was answered by a later leader."""

    def announced(self, announcement: LeaderAnnouncement, now: float) -> bool:
        """Consider an announcement (rule 1); return whether it is about the believed leader."""
        if announcement == self.leader:
            return True
        self.prompt(now, announcement.leader_epoch)
        return False

    def prompt(self, now: float, heard_epoch: int = 0) -> None:
        """Ask: the leader is unknown, does not reply, or a refusal came from the term ``heard_epoch``."""
        if now - self._asked_at > CALM_SECONDS:
            self._in_a_row = 0
        self._number += 1
        self._heard_epoch = heard_epoch
        pause_seconds = PROMPT_BACKOFF.bound_seconds(self._in_a_row - 1) if self._in_a_row else 0.0
        due = max(now, self._asked_at + pause_seconds)
        self.ask_at = due if self.ask_at is None else min(self.ask_at, due)

    def ask(self, now: float, jitter: float) -> Question:
        if self._asked_number != self._number:
            self._asked_number, self._attempts = self._number, 0
            self._in_a_row += 1
        self._asked_at = now
        self.ask_at = now + REPEAT_BACKOFF.seconds(self._attempts, jitter)
        self._attempts += 1
        believed_epoch = self._believed_epoch
        return Question(self._number, max(self._heard_epoch, believed_epoch), believed_epoch)

    def answered(self, question: Question, leader: LeaderAnnouncement) -> bool:
        """Consider the reply of ``leader`` to ``question`` (rule 3); return whether the belief has changed."""
        believed_epoch = self._believed_epoch
        if leader.leader_epoch < believed_epoch and question.believed_epoch != believed_epoch:
            return False
        if question.number == self._number:
            self.ask_at = None
        if leader.leader_epoch > believed_epoch:
            self._in_a_row = 0
        changed = leader != self.leader
        self.leader = leader
        return changed

    @property
    def _believed_epoch(self) -> int:
        return 0 if self.leader is None else self.leader.leader_epoch


class CommandDeadline:
    """The deadline of one command, by the clock of each term that it is sent to.

    A leader that was frozen finds commands in its socket whose clients have given up. It must refuse them, and it
    cannot compare its wall clock with the client's. So the deadline is an age of the leader's own term: the first
    attempt has the limit 0, and its refusal contains the age. The client adds the time that it will still wait. The age
    was read before the refusal arrived, so the leader's limit passes no later than the client's own, as long as both
    clocks run at the same speed. Leases rest on the same assumption (Gray and Cheriton, SOSP 1989).
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._leader_epoch: int | None = None
        self._max_term_age_ms = 0
        self.may_be_executed = False
        """Whether a copy was sent that a leader could execute."""

    def max_term_age_ms(self, leader_epoch: int) -> int:
        """Return the limit for an attempt in this term; 0 while the term's age is unknown."""
        return self._max_term_age_ms if leader_epoch == self._leader_epoch else 0

    def sent(self, leader_epoch: int) -> None:
        self.may_be_executed |= self.max_term_age_ms(leader_epoch) > 0

    def learn(self, leader_epoch: int, term_age_ms: int, now: float) -> bool:
        """Note the age of the term in a refusal that arrived at ``now``; return whether it is news."""
        if leader_epoch == self._leader_epoch:
            return False
        self._leader_epoch = leader_epoch
        self._max_term_age_ms = term_age_ms + max(0, int((self._deadline - now) * 1000))
        return True
