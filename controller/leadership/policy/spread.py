"""Decide which daemon should lead each shard, and which shards move now. Pure.

Every daemon computes the same plan from the same view of ZooKeeper, and acts on the shards that it
leads. No component coordinates them.

Rules:

1. A shard moves only to a daemon that waits in the shard's queue: it can read the ledger.
2. A daemon in maintenance, one that is leaving, or one that lacks the broker or the store gets no shards, and gives
   away all that another one can take. Shards leave a daemon that lacks a server only for daemons that are ready: when
   all lack it, and get it back one after the other, nothing moves. If no other is left, one that stops gives its shards
   to one in maintenance, which would get the lock anyway, and without having read the ledger. Of several daemons, the
   one to which the fewest transfers were abandoned (`startable`, rule 4) gets it. Only
   the holder knows that, and acts on it.
3. Otherwise the loads of the settled daemons differ by at most the weight of one shard; with equal
   weights, the numbers of their shards differ by at most one. Only as many shards move as this takes.
4. Only a settled daemon attracts shards to spread them. A daemon that starts again and again never
   settles, so it attracts none. Rule 2 also uses others, if no settled one can take a shard.
5. A shard that an operator has transferred, also one that was there already, stays where it is while rule 2 permits it.
   It counts in the load.
6. Weights are whole numbers from 1 to `MAX_WEIGHT`, relative to the mean load: the share of one busy shard is
   bounded, and a load that changes a little changes nothing. A shard whose load is unknown counts as an average one.
7. Equal candidates are chosen by name and number, so the order of the input is irrelevant.

Kafka's preferred leaders and Redpanda's leader balancer also move leaders gradually, with a limit on moves in flight.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from controller.leadership.policy.instance_record import LACKS, Readiness
from metrics.label_values import TransferReason

MAX_WEIGHT: Final = 4


@dataclass(frozen=True, slots=True)
class LiveDaemon:
    """A daemon that is registered in ZooKeeper."""

    name: str
    settled: bool = True
    """It has been live for long enough to attract shards."""
    in_maintenance: bool = False
    leaving: bool = False
    readiness: Readiness = "ready"

    @property
    def lacks_server(self) -> bool:
        return self.readiness in LACKS

    @property
    def stays(self) -> bool:
        """Whether it is meant to lead shards, as soon as it has the servers that it may lack."""
        return not (self.in_maintenance or self.leaving)

    @property
    def gives_away(self) -> bool:
        return self.lacks_server or not self.stays

    @property
    def reason(self) -> TransferReason:
        """Why it gives shards away, if it does."""
        if self.leaving or self.in_maintenance:
            return "shutdown" if self.leaving else "maintenance"
        return "no_broker" if self.readiness == "no_broker" else "no_store"


@dataclass(frozen=True, slots=True)
class ShardQueue:
    """The queue of one shard. Its holder has the lock; None: no daemon has."""

    shard: int
    holder: str | None
    waiting: frozenset[str] = frozenset()
    """The daemons that wait for the lock."""
    fixed: bool = False
    """An operator wants it at its holder."""
    weight: int = 1
    abandoned: Mapping[str, int] = field(default_factory=dict)
    """Daemon → number of transfers of this shard to it that were abandoned."""


@dataclass(frozen=True, slots=True)
class Move:
    shard: int
    source: str
    target: str
    reason: TransferReason


@dataclass(frozen=True, slots=True)
class Plan:
    preferred: Mapping[int, str]
    """Shard → the daemon that should lead it; without the shards that no live daemon holds."""
    moves: tuple[Move, ...]
    """From the holder to the preferred daemon, in the order in which to start them."""


@dataclass(slots=True)
class _Draft:
    """Where each shard is while a plan is made, and the load of each daemon."""

    live: Mapping[str, LiveDaemon]
    queues: Mapping[int, ShardQueue]
    placed: dict[int, str]
    loads: dict[str, int]
    reasons: dict[int, TransferReason] = field(default_factory=dict)
    """Why each shard moves, in the order of the first reason."""

    def able(self, shard: int) -> frozenset[str]:
        queue = self.queues[shard]
        return queue.waiting if queue.holder is None else queue.waiting | {queue.holder}

    def move(self, shard: int, target: str, reason: TransferReason) -> None:
        weight = self.queues[shard].weight
        self.loads[self.placed[shard]] -= weight
        self.loads[target] += weight
        self.placed[shard] = target
        self.reasons.setdefault(shard, reason)

    def moves(self) -> Iterator[Move]:
        for shard, reason in self.reasons.items():
            source, target = self.queues[shard].holder, self.placed[shard]
            if source is not None and source != target:
                yield Move(shard, source, target, reason)


def plan(daemons: Iterable[LiveDaemon], queues: Iterable[ShardQueue]) -> Plan:
    live = {each.name: each for each in daemons}
    by_shard = {each.shard: each for each in queues}
    placed = {shard: each.holder for shard, each in by_shard.items() if each.holder is not None and each.holder in live}
    loads = dict.fromkeys(live, 0)
    for shard, holder in placed.items():
        loads[holder] += by_shard[shard].weight
    draft = _Draft(live, by_shard, placed, loads)
    _empty(draft)
    _spread(draft)
    return Plan(dict(draft.placed), tuple(draft.moves()))


def weights(loads: Mapping[int, float]) -> dict[int, int]:
    """Return shard → weight (rule 6). ``loads``: in any unit; 0 for a shard whose load is unknown."""
    known = [load for load in loads.values() if load > 0]
    if not known:
        return dict.fromkeys(loads, 1)
    mean = sum(known) / len(known)  # Each other shard counts as this mean.
    return {shard: min(MAX_WEIGHT, max(1, round(load / mean))) for shard, load in loads.items()}


def _empty(draft: _Draft) -> None:
    """Move the shards of daemons that give them away (rule 2)."""
    live = draft.live
    for shard in sorted(shard for shard, holder in draft.placed.items() if live[holder].gives_away):
        reason = live[draft.placed[shard]].reason
        able = [name for name in draft.able(shard) if name in live and not live[name].gives_away]
        if reason in LACKS:
            able = [name for name in able if live[name].readiness == "ready"]
        elif reason == "shutdown" and not able:
            waiting = (live[name] for name in draft.able(shard) if name in live)
            able = [each.name for each in waiting if each.in_maintenance and not each.leaving and not each.lacks_server]
        if able:
            abandoned = draft.queues[shard].abandoned
            order = {name: (abandoned.get(name, 0), not live[name].settled, draft.loads[name], name) for name in able}
            draft.move(shard, min(order, key=order.__getitem__), reason)


@dataclass(frozen=True, slots=True)
class _Group:
    """Shards with the same choices."""

    holder: str
    weight: int
    able: frozenset[str]


def _spread(draft: _Draft) -> None:
    """Move shards from the daemons with the highest load to those with the lowest one (rules 3 to 5).

    Each move makes the sum of the squares of all loads smaller, so the moves end.
    """
    targets = [
        name for name, each in draft.live.items() if each.settled and not each.gives_away and each.readiness == "ready"
    ]
    movable: dict[_Group, list[int]] = {}
    for shard, holder in draft.placed.items():
        queue = draft.queues[shard]
        if not (queue.fixed and holder == queue.holder):
            insort(movable.setdefault(_Group(holder, queue.weight, draft.able(shard)), []), shard)
    while (found := _best_move(movable, targets, draft.loads)) is not None:
        group, target = found
        shard = movable[group].pop(0)
        if not movable[group]:
            del movable[group]
        draft.move(shard, target, "spread")
        insort(movable.setdefault(replace(group, holder=target), []), shard)


def _best_move(
    movable: Mapping[_Group, list[int]], targets: Iterable[str], loads: Mapping[str, int]
) -> tuple[_Group, str] | None:
    """Return what to move, and where, to make the loads as even as one move can; None: no move does."""
    best: tuple[tuple[int, str, str, int], _Group, str] | None = None
    for target in targets:
        for group, shards in movable.items():
            if target not in group.able:
                continue
            # Half of what the sum of squares loses.
            gain = group.weight * (loads[group.holder] - loads[target] - group.weight)
            order = (-gain, target, group.holder, shards[0])
            if gain > 0 and (best is None or order < best[0]):
                best = order, group, target
    return None if best is None else (best[1], best[2])


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
    """Decide which moves of a plan this daemon starts now.

    1. To spread shards, a daemon has one transfer in flight, and starts at most `SPREAD_BUDGET` within
       `BUDGET_SECONDS`: each one delays the clients of its shard for a moment.
    2. A shard that this daemon has led for less than the settling time is not spread: a view may be some seconds old.
    3. To give all shards away, up to `MAX_IN_FLIGHT` transfers are in flight, without a budget.
    4. After a transfer was abandoned, the same shard is not given to the same successor for `RETRY_SECONDS`, and
       twice as long after each further time, up to `MAX_RETRY_SECONDS`. `plan` prefers another successor, which is
       tried at once. A daemon that stops has no time for pauses, nor for trying each shard: a successor that has not
       taken one of its shards in time is behind the others for all. What was abandoned least often is started first.
    5. Rules 1 and 2 spare clients. They do not hold for a shard without a topic, and not for a daemon that has just
       started: clients have waited for its terms anyway, and daemons that start together spread their shards at once.
       Such a transfer needs a term of `TERM_SECONDS`, and up to `MAX_UNPACED` are in flight.
    """
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
