"""What a request handler returns, and how handlers are registered by request type.

A handler returns the body of the reply, or a `Refusal`, unless a lookup of its raises one. A pure decision returns a
`Decision`: the entries to write, and how to build the body once they are applied.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from headgate.model import entries as e
from headgate.protocol.codec import user_of
from headgate.protocol.replies import AnyReplyBody, Done
from headgate.protocol.request_fields import RequestBody, SubscriptionCommand, TopicCommand
from headgate.protocol.requests import CreateSubscription, EvictConsumer, Request
from metrics.label_values import RequestLimit
from shard.state.producers import ProducerState
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.steps import Steps
from shard.subscriptions.refusal import Refusal, RequestRefusedError, invalid

Answer = Callable[[ShardState], "AnyReplyBody | Stepwise"]
"""State after the entries are applied → reply body, or a query that has taken its snapshot of that state."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Propose ``entries``, then reply with what ``answer`` returns."""

    entries: tuple[e.AnyEntry, ...]
    answer: Answer
    of_dry_run: tuple[e.AnyEntry, ...] = ()
    """What it would propose: judged likewise, and not proposed."""


@dataclass(frozen=True, slots=True)
class AfterChunk:
    """Reply with ``body`` once ``chunk`` is durable. Later entries need not be."""

    chunk: int
    body: AnyReplyBody


@dataclass(frozen=True, slots=True)
class AfterBarrier:
    """Reply with ``body`` after a barrier, which proves that no other leader knows better."""

    body: AnyReplyBody


@dataclass(frozen=True, slots=True)
class Deferred:
    """Reply with what ``work`` returns, or not at all if that is None.

    The leader does the work beside all other requests, and drops it at the end of its term: clients repeat their
    requests to the next leader. The reply leaves once ``chunk`` is durable; None: once all is that was proposed before.
    """

    work: Callable[[], Awaitable[AnyReplyBody | Refusal | None]]
    limit: RequestLimit
    most: int
    """So many requests with this limit may wait. Further ones are refused as ``unavailable``."""
    chunk: int | None = None


StepResult = AnyReplyBody | Decision | Refusal


@dataclass(frozen=True, slots=True)
class Stepwise:
    """Take ``steps`` over turns of the loop, and carry out what they return in the turn of the last one.

    The state may change between two steps. A query reads a snapshot; a decision must be for the state
    that its last step finds.
    """

    steps: Steps[StepResult]


Outcome = AnyReplyBody | Decision | AfterChunk | AfterBarrier | Deferred | Stepwise | Refusal
Handler = Callable[[Request, ShardState], Outcome]
Registration = tuple[type[RequestBody], Handler]
BodyT = TypeVar("BodyT", bound=RequestBody)


def done(_: ShardState) -> AnyReplyBody:
    """Return `Done`: the `Answer` of commands without a result."""
    return Done()


def command(kind: type[BodyT], decide: Callable[[BodyT, ShardState], Decision | Refusal]) -> Registration:
    """Register a pure decision on the shard's state for requests of type ``kind``."""
    return _registration(kind, lambda body, state, _: decide(body, state))


def user_command(kind: type[BodyT], decide: Callable[[BodyT, ShardState, str], Outcome]) -> Registration:
    """Register a pure decision on the shard's state and on the user who asks for it."""
    return _registration(kind, lambda body, state, client_id: decide(body, state, user_of(client_id)))


def handler(kind: type[BodyT], respond: Callable[[BodyT, str], Outcome]) -> Registration:
    """Register a method that takes the body and the client id for requests of type ``kind``."""
    return _registration(kind, lambda body, _, client_id: respond(body, client_id))


def _registration(kind: type[BodyT], respond: Callable[[BodyT, ShardState, str], Outcome]) -> Registration:
    def handle(request: Request, state: ShardState) -> Outcome:
        assert isinstance(request.body, kind), f"{type(request.body).__name__} reached the handler of {kind.__name__}"
        try:
            require_seen(request.body, state)
            outcome = respond(request.body, state, request.client_id)
        except RequestRefusedError as error:
            return error.refusal
        return Stepwise(_take(outcome.steps, request.body, state)) if isinstance(outcome, Stepwise) else outcome

    return kind, handle


def _take(steps: Steps[StepResult], body: RequestBody, state: ShardState) -> Steps[StepResult]:
    try:
        result = yield from steps
        require_seen(body, state)  # The topic may have been created again since the first step.
    except RequestRefusedError as error:
        return error.refusal
    return result


FoundT = TypeVar("FoundT")


# Lookups. A refusal names no others: the user may not be allowed to see them, and most are in other shards. Clients
# ask for those that exist (headgate.client.cluster_query).


def find_topic(name: str, state: ShardState) -> Topic:
    return _require(state.topics.get(name), f"there is no topic {name!r}")


def find_subscription(topic_name: str, name: str, state: ShardState) -> tuple[Topic, Subscription]:
    topic = find_topic(topic_name, state)
    return topic, _require(topic.subscriptions.get(name), f"topic {topic_name!r} has no subscription {name!r}")


def require_seen(body: RequestBody, state: ShardState) -> None:
    """Refuse a command about another topic, subscription or program than its sender has seen; not a repeated one."""
    if not isinstance(body, TopicCommand | SubscriptionCommand | CreateSubscription):
        return
    if body.token in state.commands:
        return
    if body.topic_id is not None:
        topic = find_topic(body.topic, state)
        require_same(f"topic {body.topic!r}", body.topic_id, topic.topic_id)
    if isinstance(body, SubscriptionCommand) and body.subscription_id is not None:
        _, subscription = find_subscription(body.topic, body.subscription, state)
        what = f"subscription {body.subscription!r} of topic {body.topic!r}"
        require_same(what, body.subscription_id, subscription.subscription_id)
    if isinstance(body, EvictConsumer) and body.consumer_incarnation is not None:
        _, subscription = find_subscription(body.topic, body.subscription, state)
        if (consumer := subscription.consumers.get(body.consumer)) is not None:
            what = f"consumer {body.consumer!r} of subscription {body.subscription!r}"
            require_same(what, body.consumer_incarnation, consumer.incarnation, "started again: it has incarnation")


def require_same(what: str, seen: int, present: int, how: str = "deleted and created again: it has id") -> None:
    if seen != present:
        kind = how.rpartition(" ")[2]
        raise RequestRefusedError(invalid(f"{what} was {how} {present}, and the request is for {kind} {seen}"))


def find_producer(name: str, state: ShardState) -> ProducerState:
    return _require(state.producers.of_name(name), f"there is no producer {name!r} on this shard")


def _require(found: FoundT | None, problem: str) -> FoundT:
    if found is None:
        raise RequestRefusedError(invalid(problem))
    return found
