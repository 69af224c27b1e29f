"""The bugs that show what the simulator finds: each replaces one decision by a wrong one, and breaks one rule.

A bug names a function or method as ``module:name``. Its wrong version gets the right one before the arguments. While it is
planted, it replaces the right one in its module or class, and wherever the function was imported by its name. Each was
found within 200 seeds of its kind; `tests.simulation.nightly` plays them.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from msgspec import ValidationError
from msgspec.structs import replace as with_fields

from controller.leadership.policy.transitions import TRANSITIONS, Action, Event, Role
from headgate.model.entries import SubscriptionSeek
from headgate.model.layout import Layout
from headgate.protocol.codec import MURMUR_DIGEST_BYTES
from shard.requests.verdicts import Accept, Duplicate
from shard.subscriptions.gate import undrained_sealed
from shard.subscriptions.refusal import Refusal
from shard.subscriptions.registration import Claim

_PACKAGES = """
    bench chaos controller coordinator demo drain headgate metrics scale shard tests web
"""
PACKAGES = tuple(_PACKAGES.split())

Function = Callable[..., Any]


class Bug(NamedTuple):
    sentence: str
    """What the wrong program does."""
    seam: str
    """``module:name`` of the function, or ``module:Class.name``."""
    wrong: Function
    """The wrong function; its first argument is the right one."""
    kind: str = ""
    """The program or operation without which no world can find it, of `Plan.kinds`; empty: none."""

    @property
    def owner(self) -> tuple[ModuleType | type, str]:
        """The module or class that contains the function, and its name there."""
        module, _, path = self.seam.partition(":")
        *classes, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for each in classes:
            owner = getattr(owner, each)
        return owner, name


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Replace the function of ``bug``, also where it was imported, until the block ends."""
    owner, name = bug.owner
    right = vars(owner)[name]

    def wrong(*args: Any, **kwargs: Any) -> Any:  # a plain function, so that methods get their object
        return bug.wrong(right, *args, **kwargs)

    modules = [each for module, each in sys.modules.items() if module.partition(".")[0] in PACKAGES]
    places = [owner] if isinstance(owner, type) else [each for each in modules if vars(each).get(name) is right]
    for place in places:
        setattr(place, name, wrong)
    try:
        yield
    finally:
        for place in places:
            setattr(place, name, right)


def always(value: Any) -> Function:
    """Return a wrong function that returns ``value``, whatever it is asked."""
    return lambda *_, **__: value


def with_arguments(**given: Any) -> Function:
    """Return a wrong function that calls the right one with these arguments in place of its own."""
    return lambda right, *args, **kwargs: right(*args, **kwargs | given)


def accepting(text: str) -> Function:
    """Return a wrong `judge_batch` that accepts what it should refuse with this verdict or reason."""

    def judge_batch(right: Function, *args: Any, **kwargs: Any) -> Any:
        judged = right(*args, **kwargs)
        return Accept() if isinstance(judged, Refusal) and text in f"{judged.verdict} {judged.reason}" else judged

    return judge_batch


def without_transition(event: Event) -> Function:
    """Return a wrong `Leadership.on`: an event changes nothing for a leader."""
    row = {known: result for known, result in TRANSITIONS[Role.LEADING].items() if known is not event}
    return lambda right, self, found: right(self, found, {**TRANSITIONS, Role.LEADING: row})


def _keeping_the_lock(right: Function, self: Any, event: Event) -> Any:
    after, actions = right(self, event)
    if actions == (Action.END_TERM, Action.WITHDRAW, Action.CONTEND):
        return replace(after, holds_lock=self.holds_lock), (Action.END_TERM,)
    return after, actions


def granting(may_grant: Callable[[Any, Any, str], bool]) -> Function:
    """Return a wrong `handover.plan` that also grants other slices."""

    def plan(right: Function, state: Any) -> Any:
        moves = right(state)
        more = [(each, owner) for each, owner in state.target.items() if may_grant(state.holdings, each, owner)]
        return replace(moves, grants=tuple(sorted({*moves.grants, *more})))

    return plan


def _overtaking(right: Function, self: Any, holding: Any, records: Any) -> Any:
    resuming = (
        {} if records[-1].parked_number else {key: each for key, each in holding.parked.items() if each.is_resuming}
    )
    for key in resuming:
        del holding.parked[key]
    taken = right(self, holding, records)
    holding.parked |= resuming
    return taken


def _gate_of_parents(right: Function, layout: Layout, drained: Any, *rest: Any) -> Any:
    gate = right(layout, drained, *rest)
    parents = {each: layout.segments[each].parents for each in gate.blocked}
    behind = {each for each in parents if all(p in drained or p not in layout.segments for p in parents[each])}
    return replace(gate, grantable=tuple(sorted({*gate.grantable, *behind})))


def _granting_the_retired(right: Function, *args: Any) -> Any:
    gate = right(*args)
    return replace(gate, grantable=tuple(sorted({*gate.grantable, *gate.retired})))


def _keeping_drained(right: Function, self: Any, entry: Any, at_ms: int) -> None:
    drained = set(self.drained)
    right(self, entry, at_ms)
    if isinstance(entry, SubscriptionSeek):
        self.drained.update(drained)


def _claiming_what_others_hold(right: Function, self: Any, segment: int, generation: int) -> Any:
    held = next(iter(self._subscription.holdings.held_in({segment})), None)
    return right(self, segment, generation) if held is None else held


def _expiring_names(right: Function, producers: Any, **rules: Any) -> Any:
    expired = right(producers, **rules)
    return expired and with_fields(expired, producer_ids=[*expired.producer_ids, *producers.with_window])


def _snapshot_without_batches(right: Function, state: Any, **rest: Any) -> Any:
    for producer in state.producers.values():
        producer.finished.clear()
    return right(state, **rest)


async def _at_once(*_: Any) -> None:
    """Return without doing anything."""


def _hasty_puback(right: Function, self: Any, topic_id: int, delivery: Any) -> None:
    delivery.acknowledge()
    right(self, topic_id, delivery)


async def _not_asking(right: Function, self: Any, *args: Any, proof: bool) -> Any:
    return None if proof else await right(self, *args, proof=proof)


def _believing(_: Function, self: Any, announcement: Any, __: float) -> bool:
    if self.leader is None or announcement.leader_epoch > self.leader.leader_epoch:
        self.leader = announcement
    return bool(announcement == self.leader)


def _strict(right: Function, data: bytes) -> Any:
    if b"from_a_later_version" in data:
        raise ValidationError("unknown field")
    return right(data)


GATE = "shard.subscriptions.gate:compute_gate"
HANDOVER = "shard.balancing.handover:plan"
VERDICT = "shard.requests.verdicts:judge_batch"
ON = "controller.leadership.policy.transitions:Leadership.on"
SPREAD = "controller.leadership.policy.spread:plan"
LEVELS = "controller.leadership.policy.feature_levels"
TRIM = "controller.retention.policy"
MERGE = "drain.backlog.merge"
SESSIONS = "shard.subscriptions.registration"
DEVICES = "controller.devices"
SUBSCRIPTION = "shard.state.subscription:Subscription"

# fmt: off
BUGS = (
    # The gate, and drained segments
    Bug("A child waits for its parents, but not for what these wait for.", GATE, _gate_of_parents),
    Bug("A drained segment stays grantable.", GATE, _granting_the_retired),
    Bug("A sealed segment counts as drained without a count.", "shard.subscriptions.gate:drained_without_count",
        lambda _, layout, drained, *__: sorted(undrained_sealed(layout, drained))),
    Bug("A drained fact outlives a seek.", f"{SUBSCRIPTION}.apply", _keeping_drained),
    Bug("Spark reports each sealed segment as drained.", f"{MERGE}:drained",
        lambda _, backlog, __, segments: frozenset(each.segment for each in backlog if each.sealed) & segments),
    # The merge of counts
    Bug("Acknowledgements from before a seek still count.", f"{MERGE}:merge_rows",
        lambda right, merge: right(replace(item, reset=False) for item in merge)),
    Bug("A count that depends on the spread of keys is called exact.", "headgate.protocol.backlog:count_records", with_arguments(exact=True)),
    # The handover
    Bug("A slice is granted while another consumer holds it.", HANDOVER,
        granting(lambda holdings, each, owner: each in holdings and holdings[each].consumer != owner)),
    Bug("A confirmation releases nothing.", HANDOVER, lambda right, state: right(replace(state, confirmed=frozenset()))),
    Bug("A holder that is not the target's owner is not revoked.", HANDOVER, lambda right, state: replace(right(state), revocations=())),
    Bug("A revocation never times out.", "coordinator.assignment_reconciler:AssignmentReconciler.overdue_revocations", always(frozenset())),
    # Consumers
    Bug("An older incarnation takes a name back.", f"{SESSIONS}:judge_claim", lambda right, *args: Claim.REPLACES if (found := right(*args)) is Claim.OUTDATED else found),
    Bug("A consumer without heartbeats is never disconnected.", f"{SESSIONS}:find_expired", with_arguments(heartbeat_interval_seconds=1e9)),
    Bug("A consumer creates a deleted subscription again.", "shard.subscriptions.registration:judge_deleted_subscription", always(None)),
    Bug("A consumer delivers after its lease.", "headgate.client.consuming.record_queue:DeliveryLease.begin",
        lambda right, self, asked_at, _: right(self, asked_at, 1e9), "lasting"),
    Bug("An acknowledgement of a former holder counts.", "shard.subscriptions.registration:Claims.held", _claiming_what_others_hold),
    Bug("An acknowledgement may lie beyond the last record.", "shard.subscriptions.acknowledgements:acknowledgeable_end", always(None)),
    Bug("A seek does not move the descendants of a segment.", "shard.subscriptions.positions:seek_positions", with_arguments(gated=False)),
    Bug("A seek to a time begins a minute too late.", "headgate.reading.topic_files:positions_at",
        lambda right, ledger, topic, timestamp_ms: right(ledger, topic, timestamp_ms + 60_000), "seek"),
    # Verdicts, and identities of producers
    Bug("A request for another term is accepted.", "shard.requests.verdicts:judge_term", always(None)),
    Bug("An older producer epoch is accepted.", VERDICT, accepting("fenced")),
    Bug("A repeated batch is stored again.", VERDICT,
        lambda right, *args, **kwargs: Accept() if isinstance(found := right(*args, **kwargs), Duplicate) else found),
    Bug("Batches have one digest, so a repetition may have other content.", "headgate.protocol.codec:batch_digest", always(bytes(16))),
    Bug("A snapshot lacks the deduplication window.", "controller.snapshots.format:encode_snapshot", _snapshot_without_batches),
    Bug("Named producers expire like anonymous ones.", "shard.state.producers:Producers.expired", _expiring_names),
    # Segments, records and what they are counted as
    Bug("An external topic may have any graph.", "shard.requests.source_listing:check_graph", always(None)),
    # Leadership
    Bug("A taken number does not end the term.", ON, without_transition(Event.NUMBER_TAKEN)),
    Bug("An unknown outcome does not end the term.", ON, without_transition(Event.OUTCOME_UNKNOWN)),
    Bug("A term begins without the broker.", "controller.leadership.policy.safety:begins_term", always(True)),
    Bug("A daemon keeps the lock after its term.", ON, _keeping_the_lock),
    Bug("The ledger's time follows every clock.", "shard.state.ledger_time:SteadyClock.read", lambda _, __, wall_ms, ___: wall_ms),
    Bug("A daemon in maintenance keeps its shards.", SPREAD,
        lambda right, daemons, queues: right([replace(each, in_maintenance=False) for each in daemons], queues)),
    # Queues
    Bug("The loss of a consumer fails nothing.", "shard.state.redelivery:Redelivery.release", with_arguments(lost="")),
    Bug("No consumer takes the segment of one without progress.", "shard.subscriptions.stalled:takeable", always({})),
    Bug("A dead record is acknowledged and stored nowhere.", "headgate.client.consuming.dead_letters:DeadLetterSender._store", _at_once),
    # Parked keys
    Bug("A grant does not name the parked keys.", "shard.state.redelivery:ParkedKeys.within", always([])),
    Bug("A record of a parked key is acknowledged, and parked nowhere.", "headgate.client.decisions.unstored_acknowledgements:UnstoredAcknowledgements.add_parked", always(None)),
    Bug("Newer records of a key do not wait until it is resumed.", "headgate.client.consuming.record_feed:RecordFeed._delivered", _overtaking, "parkers"),
    # More shards
    Bug("A topic is created without asking its older places.", "headgate.client.cluster_watch:TopicPlaces._look", _not_asking, "growth"),
    # Feature levels
    Bug("What a later level allows is done before.", f"{LEVELS}:refusal", always(None), "upgrade"),
    Bug("A batch has the digest of a later level.", "shard.requests.verdicts:route_batch",
        lambda right, *args, **_: right(*args, digest_bytes=MURMUR_DIGEST_BYTES), "upgrade"),
    Bug("The level rises beside daemons that do not support it.", f"{LEVELS}:judged",
        lambda right, *args: with_fields(right(*args), problems=()), "upgrade"),
    # What is remembered of a topic, and what is said about a subscription
    Bug("A reader's own positions are those of any topic with the name.", "shard.subscriptions.positions:own_positions_error",
        lambda right, topic, ends, request, **alone: right(topic, ends, with_fields(request, positions_topic_id=None), **alone), "rebirth"),
    Bug("A blocked segment names its parents only.", "shard.subscriptions.gate:_Blocked._nearest_behind",
        lambda right, *args: [each for each in right(*args) if each[0] == 1], "inquirer"),
    # Quotas
    Bug("No quota of objects holds.", "shard.access.quotas:judge_growth", always(None), "tenants"),
    Bug("A consumer that is removed stays counted.", "shard.state.shard_state:Usage.add_consumer",
        lambda right, self, found, times=1: right(self, found) if times > 0 else None, "tenants"),
    # Retention and trimming
    Bug("A roll loses the end of the segment.", "shard.requests.topic_commands:roll_entry", lambda right, topic, *rest: with_fields(right(topic, *rest), end_offset=0)),
    Bug("A leader splits behind any number of undrained generations.", "controller.scaling.policy:undrained_generations", lambda _, layout, __: dict.fromkeys(layout.segments, 0), "hotspots"),
    Bug("A segment is pruned without a drained fact.", "controller.retention.policy:_unfinished",
        lambda right, one, segments, ends: [each for each in right(one, segments, ends) if one.position(each) < ends[each]]),
    Bug("Chunks are deleted as soon as they are compacted.", f"{TRIM}:trim_point", with_arguments(delay_ms=0)),
    Bug("The first chunk of a term is deleted.", f"{TRIM}:deletable", with_arguments(term_start_chunks=())),
    # Clients and devices
    Bug("A client believes each announcement.", "headgate.client.decisions.leader_belief:LeaderBelief.announced", _believing),
    Bug("A client sends everything again after an opening.", "headgate.client.decisions.session_batches:SessionBatches.decide",
        lambda right, self, _: right(self, 0)),
    Bug("What is handled acknowledges everything before it.", "headgate.client.processing.schedule:Schedule.give_up",
        lambda right, self, batch: (right(self, batch), [each.record for each in batch.works])[1]),
    Bug("A key does not wait for its retry.", "headgate.client.processing.schedule:Schedule.failed",
        lambda right, self, batch: [self._release(each) for each in batch.works] and right(self, batch)),
    Bug("A request with an unknown field is not read.", "headgate.protocol.codec:decode_request", _strict, "other_versions"),
    Bug("A repeated request opens another identity.", "shard.state.producers:Producers.opened_by",
        lambda right, *args: known if (known := right(*args)) is not None and known.name is not None else None, "import"),
    Bug("A record is delivered before it is durable.", "headgate.ledger.ledger:Ledger.make_durable", _at_once, "power_failure"),
    Bug("A device's message is acknowledged before it is durable.", f"{DEVICES}.intake:DeviceIntake.accept", _hasty_puback),
    Bug("The filters of devices change before a chunk of the term.", f"{DEVICES}.sessions:TopicSession._wait_for_barrier", _at_once),
)
