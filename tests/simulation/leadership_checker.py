"""Checks who leads which shard: terms, transfers, the spread, and what operators read about it.

1. The daemon that began a term writes its chunks, and no other daemon does. Terms have the epochs 1, 2, 3 ….
2. Once faults have ended, every shard has a leader, the numbers of shards that daemons lead differ by at most one, and a
   daemon in maintenance leads nothing unless all are. Shards that an operator has transferred stay where they are.
3. A shard moves to spread shards only if its leader led at least two more than the successor. Both have settled: the
   successor has run for `SETTLE_SECONDS`, and the term has lasted for so long, or for `TERM_SECONDS` if its daemon has
   just started. A view may be `VIEW_SECONDS` old: a successor that had settled may have been restarted meanwhile.
   A daemon spreads one shard at a time, except when it has just started.
4. A transfer that was reported as done has made that daemon the leader, and a description of the cluster names daemons
   that began the terms it names.
5. No term outlasts `unreachable_seconds` in which its daemon does not reach the broker, and none begins without it.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from controller.leadership.policy.spread import START_SECONDS, TERM_SECONDS
from headgate import ShardInfo
from headgate.ledger.chunk import Chunk
from headgate.model import entries as e
from metrics import events
from tests.simulation.broken_promise import BrokenPromiseError

WRITER: ContextVar[str] = ContextVar("writer", default="")
"""The daemon that runs at present; empty: another program does."""
SETTLE_SECONDS = 10.0
"""`spread.settle_seconds` of all simulated daemons. It is shorter than the default: a run lasts some minutes."""
UNREACHABLE_SECONDS = 10.0
"""`ingest.unreachable_seconds` of the daemons of most worlds."""
TRANSFER_SECONDS = 12.0
"""How long a transfer may last, at most."""
BEGIN_SECONDS = 1.0
"""How long the first chunk of a term may take: its daemon had the broker when it began to write."""
VIEW_SECONDS = 3.0
"""How old a daemon's view of the others, and the transfer that follows from it, may be."""


@dataclass(frozen=True, slots=True)
class Term:
    instance: str
    began_at: float


@dataclass
class LeadershipChecker:
    """The terms and transfers of one run."""

    terms: dict[int, list[Term]] = field(default_factory=dict)
    """Shard → its terms, the first one with epoch 1."""
    transfers: Counter[str] = field(default_factory=Counter)
    """Reason and outcome → number of transfers."""
    knows_writers: bool = True
    """Whether chunks are reported as they are written, and not when a disk makes them durable."""
    unreachable_seconds: float = UNREACHABLE_SECONDS
    slowest_send_seconds: float = 0.0
    """In a calm world, from the call of `send` to the outcome."""
    started_at: dict[str, float] = field(default_factory=dict)
    """Daemon → when its present process started."""
    restarted_settled: dict[str, bool] = field(default_factory=dict)
    """Daemon → whether it had settled when it was restarted last."""
    broker_lost_at: dict[str, float] = field(default_factory=dict)
    """Daemon that does not reach the broker → since when."""
    thawed_at: float = -math.inf
    """When a daemon or its store last continued after a freeze: what it was writing may be old."""

    def epoch(self, shard: int) -> int:
        """Return the newest epoch of a shard; 0: it had no leader yet."""
        return len(self.terms.get(shard, ()))

    def check_chunk(self, shard: int, found: Chunk, now_seconds: float) -> None:
        """Check the epoch and the writer of a chunk that was just written (rules 1 and 3)."""
        terms = self.terms.setdefault(shard, [])
        began = [entry for entry in found.entries if isinstance(entry, e.TermStarted)]
        expected = len(terms) + bool(began)
        if found.header.leader_epoch != expected or (began and [each.leader_epoch for each in began] != [expected]):
            raise BrokenPromiseError(
                f"shard {shard}: chunk {found.header.number} of epoch {found.header.leader_epoch} "
                f"after epoch {len(terms)}"
            )
        if began:
            self._check_beginning(shard, began[0].instance, now_seconds)
            terms.append(Term(began[0].instance, now_seconds))
        writer = WRITER.get()
        if self.knows_writers and writer != terms[-1].instance:
            raise BrokenPromiseError(
                f"shard {shard}: daemon {writer!r} wrote chunk {found.header.number} in the term of "
                f"{terms[-1].instance!r}"
            )

    def _check_beginning(self, shard: int, daemon: str, now_seconds: float) -> None:
        lost_at = self.broker_lost_at.get(daemon, math.inf)
        if now_seconds - max(lost_at, self.thawed_at) > BEGIN_SECONDS:
            seconds = f"{now_seconds - lost_at:.1f} s after it lost the broker"
            raise BrokenPromiseError(f"daemon {daemon!r} begins a term of shard {shard}, {seconds}")

    def transfer_ended(self, source: str, event: events.TransferEnded, *, calm: bool) -> None:
        """Note the end of a transfer. A complete one has made another daemon the leader (rule 4)."""
        self.transfers[f"{event.reason} {event.outcome}"] += 1
        # With a slow disk, the term chunk is read before it is durable, and only then it is noted here.
        followed = not self.knows_writers or self.terms[event.shard][-1].instance != source
        if event.outcome == "completed" and not followed:
            raise BrokenPromiseError(f"shard {event.shard} was passed on by {source!r}, and no term has followed")
        if calm and event.reason == "spread" and event.outcome == "completed":
            self._check_need(event.shard, source)

    def check_transfer_done(self, shard: int, daemon: str, epoch_before: int) -> None:
        """Check a transfer that was reported as done (rule 4); ``epoch_before``: when it was asked for."""
        since = self.terms[shard][max(0, epoch_before - 1) :]
        if daemon not in {each.instance for each in since}:
            raise BrokenPromiseError(f"shard {shard} was reported as transferred to {daemon!r}, which never led it")

    def check_description(self, described: Sequence[ShardInfo], counts: Sequence[int]) -> None:
        """Check what an operator reads about the leaders (rule 4). ``counts``: numbers of shards so far."""
        if [each.shard for each in described] not in [list(range(shards)) for shards in counts]:
            raise BrokenPromiseError(f"the cluster has {counts} shards and is described with {described}")
        for each in described:
            if each.daemon is None:
                continue
            terms = self.terms.get(each.shard, [])
            if not 0 < each.leader_epoch <= len(terms) or terms[each.leader_epoch - 1].instance != each.daemon:
                raise BrokenPromiseError(
                    f"daemon {each.daemon!r} is described as the leader of epoch {each.leader_epoch} of shard {each.shard}"
                )

    def has_just_started(self, daemon: str, now_seconds: float) -> bool:
        """Return whether a daemon has started so recently that a transfer which ends now may not have been paced."""
        return now_seconds - self.started_at.get(daemon, -math.inf) < SETTLE_SECONDS + START_SECONDS + TRANSFER_SECONDS

    def daemon_started(self, daemon: str, now_seconds: float) -> None:
        """Follow a start, also one after another of the same daemon."""
        before = self.started_at.get(daemon)
        self.restarted_settled[daemon] = before is not None and now_seconds - before >= SETTLE_SECONDS
        self.started_at[daemon] = self.broker_lost_at[daemon] = now_seconds

    def check_terms_end(self, daemon: str, terms: Collection[tuple[int, float]], lost_at: float, now: float) -> None:
        """Check the terms of a daemon that has not reached the broker since ``lost_at``: (shard, start) (rule 5).

        A clock may be a tenth slow, and a term ends with a tick.
        """
        older = [shard for shard, since in terms if since < lost_at]
        if older and now - lost_at > 1.2 * self.unreachable_seconds + 1:
            raise BrokenPromiseError(
                f"daemon {daemon!r} leads shards {older} without the broker for {now - lost_at:.1f} s"
            )

    def _check_need(self, shard: int, source: str) -> None:
        """Check a move that has spread shards: at some moment of the view it had to be needed (rule 3)."""
        before, moved = self.terms[shard][-2:]
        target, now_seconds = moved.instance, moved.began_at
        term_seconds = TERM_SECONDS if self.has_just_started(source, now_seconds) else SETTLE_SECONDS
        for since, least_seconds in (
            (before.began_at, term_seconds),
            (self.started_at.get(target, 0.0), SETTLE_SECONDS),
        ):
            seen_before = since == self.started_at.get(target) and self.restarted_settled.get(target, False)
            if now_seconds - since < least_seconds and not (seen_before and now_seconds - since < VIEW_SECONDS):
                raise BrokenPromiseError(
                    f"shard {shard} moved from {source!r} to {target!r} to spread shards, {now_seconds - since:.1f} s "
                    "after the term or the daemon began"
                )
        moments = {now_seconds - VIEW_SECONDS, now_seconds}
        moments |= {each.began_at for terms in self.terms.values() for each in terms}
        for moment in moments:
            if now_seconds - VIEW_SECONDS <= moment <= now_seconds:
                led = self._led_at(moment, moved)
                if led[source] - led[target] > 1:
                    return
        raise BrokenPromiseError(
            f"shard {shard} moved from {source!r} to {target!r} to spread shards, which were even: {dict(self._led_at(now_seconds, moved))}"
        )

    def _led_at(self, moment: float, moved: Term) -> Counter[str]:
        """Return daemon → number of shards that it led at a moment, before ``moved`` began."""
        newest = (
            [each for each in terms if each.began_at <= moment and each is not moved] for terms in self.terms.values()
        )
        return Counter(found[-1].instance for found in newest if found)


def unevenness(
    leaders: Mapping[int, str | None], daemons: Collection[str], in_maintenance: Collection[str], fixed: Collection[int]
) -> str | None:
    """Return what is wrong with the spread of shards (rule 2), or None. ``fixed``: shards that an operator moved."""
    for shard, leader in sorted(leaders.items()):
        if leader is None:
            return f"shard {shard} has no leader"
    takers = sorted(set(daemons) - set(in_maintenance))
    if not takers:
        return None
    led: dict[str, list[int]] = {name: [] for name in daemons}
    for shard, leader in leaders.items():
        if leader is not None:
            led.setdefault(leader, []).append(shard)
    for name in sorted(set(led) - set(takers)):
        if led[name]:
            return f"daemon {name!r} is in maintenance and leads shards {led[name]}"
    low = min(takers, key=lambda name: len(led[name]))
    for high in takers:
        if len(led[high]) - len(led[low]) > 1 and not set(led[high]) <= set(fixed):
            return f"daemon {high!r} leads {len(led[high])} shards, and {low!r} {len(led[low])}"
    return None
