"""Decide which moves of a plan this daemon starts now. Pure.

Rules:

1. To spread shards, a daemon has one transfer in flight, and starts at most `SPREAD_BUDGET` within
   `BUDGET_SECONDS`: each one delays the clients of its shard for a moment.
2. A shard that this daemon has led for less than the settling time is not spread: a view may be some seconds old.
3. To give all shards away, up to `MAX_IN_FLIGHT` transfers are in flight, without a budget.
4. After a transfer was abandoned, the same shard is not given to the same successor for `RETRY_SECONDS`, and twice as
   long after each further time, up to `MAX_RETRY_SECONDS`. `controller.leadership.policy.spread` prefers another
   successor, which is tried at once. A daemon that stops has no time for pauses, nor for trying each shard: a successor
   that has not taken one of its shards in time is behind the others for all. What was abandoned least often is started
   first.
5. Rules 1 and 2 spare clients. They do not hold for a shard without a topic, and not for a daemon that has just
   started: clients have waited for its terms anyway, and daemons that start together spread their shards at once. Such
   a transfer needs a term of `TERM_SECONDS`, and up to `MAX_UNPACED` are in flight.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.leadership.policy.spread import Move

MAX_IN_FLIGHT: Final = 4
SPREAD_BUDGET: Final = 16
BUDGET_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 10.0
MAX_RETRY_SECONDS: Final = 160.0
START_SECONDS: Final = 30.0
"""How long after it has settled a daemon has just started."""
TERM_SECONDS: Final = 5.0
MAX_UNPACED: Final = 16


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Transfers of one shard to one successor that were abandoned, one after the other."""

    count: int
    at: float
    """When the last one was abandoned."""
    problem: str = ""
    token: str | None = None
    """The token of the operator's command that asked for the last one; None: the spread did."""

    @property
    def retry_at(self) -> float:
        # The exponent is bounded: a daemon may be unable to lead for weeks.
        return self.at + min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(self.count - 1, 10))


@dataclass(frozen=True, slots=True)
class History:
    """What this daemon has done so far. All times are of one steady clock."""

    led_since: Mapping[int, float]
    """Shard → start of the term, for the shards that it leads."""
    started_at: float
    without_topics: frozenset[int] = frozenset()
    """Shards that it leads and no client uses."""
    in_flight: frozenset[int] = frozenset()
    spread_at: Sequence[float] = ()
    """When it started transfers that spread shards."""
    abandoned: Mapping[tuple[int, str], Abandoned] = field(default_factory=dict)
    """(Shard, successor) → transfers that were abandoned since the last complete one of the shard."""

    def abandonments(self, move: Move) -> int:
        found = self.abandoned.get((move.shard, move.target))
        return 0 if found is None else found.count


def abandonments(abandoned: Mapping[tuple[int, str], Abandoned], shard: int, *, leaving: bool) -> Mapping[str, int]:
    """Return daemon → how many transfers of ``shard``, or of all shards of a daemon that stops, were abandoned."""
    counts: Counter[str] = Counter()
    for (failed, name), each in abandoned.items():
        if leaving or failed == shard:
            counts[name] += each.count
    return counts


def startable(
    moves: Iterable[Move], instance: str, history: History, now: float, *, settle_seconds: float
) -> list[Move]:
    in_flight = len(history.in_flight)
    budget = SPREAD_BUDGET - sum(now - at < BUDGET_SECONDS for at in history.spread_at)
    just_started = now - history.started_at < settle_seconds + START_SECONDS
    started: list[Move] = []
    for move in sorted(moves, key=history.abandonments):
        unpaced = just_started or move.shard in history.without_topics
        term_seconds = min(TERM_SECONDS, settle_seconds) if unpaced else settle_seconds
        if move.source != instance or not _may_move(move, history, now, term_seconds):
            continue
        if move.reason == "spread" and unpaced:
            if in_flight >= MAX_UNPACED:
                continue
        elif move.reason == "spread":
            # One is in flight at most, so this decision uses up one of the budget at most.
            if in_flight or budget <= 0:
                continue
        elif in_flight >= MAX_IN_FLIGHT:
            continue
        in_flight += 1
        started.append(move)
    return started


def _may_move(move: Move, history: History, now: float, term_seconds: float) -> bool:
    since = history.led_since.get(move.shard)
    if since is None or move.shard in history.in_flight:
        return False
    abandoned = history.abandoned.get((move.shard, move.target))
    if abandoned is not None and now < abandoned.retry_at and move.reason != "shutdown":
        return False
    return move.reason != "spread" or now - since >= term_seconds
