"""Decide requests for producer identities, and commands on named producers. Pure."""

from typing import Final

from headgate.model import entries as e
from headgate.protocol.codec import cut_page
from headgate.protocol.replies import AnyReplyBody, ProducerIdentity, ProducerList, ProducerReply, SourcePosition
from headgate.protocol.request_fields import shared_name
from headgate.protocol.requests import DeleteProducer, DescribePosition, DescribeProducer, ListProducers, OpenProducer
from headgate.views.topics import ProducerInfo, TopicPosition
from shard.requests import handlers
from shard.state.producers import ProducerState
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal, invalid, refuse

LAST_PRODUCER_EPOCH: Final = 2**31 - 1
"""An identity that has used all its epochs gets a new id. The epoch never wraps (librdkafka #3720)."""


def open_producer(
    request: OpenProducer, state: ShardState, *, user: str, new_id: int, max_named_producers: int
) -> handlers.Decision | Refusal:
    """Return a producer identity (the table of KIP-360, with a token instead of its "last epoch").

    ``new_id``: a random number, which is the id if the producer is new. A client that guesses the
    id of another producer could end its session, or have its batches answered as duplicates.

    * A name, an id or a token of another user's producer: forbidden, unless the request has the secret that the
      producer's name ends with the digest of.
    * The token of a producer's first or last opening: the same reply again, as long as the identity is
      new. Once it has stored a batch or has been opened again, the request is a delayed copy: fenced. Its
      batch 0 would be answered as a duplicate and not be stored.
    * A name at a higher incarnation than the stored one: the next epoch, which fences the previous
      program. A lower incarnation is an older program or a delayed copy: fenced, on every shard. So is
      the stored one without an id: the program that holds the name opens further epochs by its id.
    * A name that was deleted while this incarnation or a later one held it: forgotten. A delayed copy
      would create the name again.
    * An id, alone or with a name, at its current epoch: the next epoch. An id that is not the
      name's, or any other epoch: fenced, because its sender is a stale producer.
    * An id that the shard no longer knows, or with a name that it does not know: forgotten, unless
      the request accepts a new identity.
    * An unknown name, no name and no id, or no epochs left: a new id at epoch 0.

    An opening closes the previous epoch. The reply names the sequence that it reached: every batch below is
    stored, and no other batch of it ever will be. None of that is known of a forgotten producer.
    """
    opened = state.producers.opened_by(request.token)
    known = opened or _producer_of(request, state)
    if known is not None and known.user != user and not _is_shared(known, request.secret):
        return refuse("forbidden", "the producer belongs to another user: use a name and a token of your own")
    if opened is not None:
        return _repeated(request, opened)
    if known is None:
        if request.producer_id is not None and not request.accept_new:
            return refuse("forgotten", _forgotten_reason(request))
        if (refusal := _refused_deleted(request, state)) is not None:
            return refusal
        if request.name is not None and state.producers.named >= max_named_producers:
            return invalid(
                f"producer {request.name!r} is new, and this shard has {state.producers.named} named producers already "
                f"(max_named_producers={max_named_producers}): delete one with `headgate producer delete`, or raise "
                "the limit"
            )
        return _opened(new_id, 0, user, request)
    if (refusal := _refused_incarnation(request, known)) is not None:
        return refusal
    current = known.producer_id, known.producer_epoch
    if request.producer_id is not None and (request.producer_id, request.producer_epoch) != current:
        return refuse(
            "fenced",
            f"producer {known.producer_id} is at epoch {known.producer_epoch}; this request is for epoch "
            f"{request.producer_epoch} of producer {request.producer_id}",
        )
    if known.producer_epoch >= LAST_PRODUCER_EPOCH:
        return _opened(new_id, 0, user, request, replaced_id=known.producer_id)
    return _opened(known.producer_id, known.producer_epoch + 1, user, request)


def describe_position(request: DescribePosition, state: ShardState, user: str) -> handlers.Outcome | Refusal:
    """Return how far a named producer has read its source into one topic.

    After a barrier: a deposed leader may not know the latest position, and what follows an older one would be stored
    again. An incarnation that it knows was reached.
    """
    producer = handlers.find_producer(request.producer, state)
    if producer.user != user:
        return refuse("forbidden", f"producer {request.producer!r} belongs to another user")
    topic = handlers.find_topic(request.topic, state)
    position = producer.source_positions.get(topic.topic_id)
    body = SourcePosition(topic_id=topic.topic_id, position=position, incarnation=producer.incarnation)
    is_reached = request.incarnation is not None and producer.incarnation >= request.incarnation
    return body if is_reached else handlers.AfterBarrier(body)


def list_producers(request: ListProducers, state: ShardState) -> handlers.Decision:
    """Return one page of the named producers, by name."""
    described = (_description(producer, state) for producer in state.producers.named_after(request.after))
    page, following = cut_page(((each.producer,), each) for each in described)
    return handlers.Decision((), lambda _: ProducerList(producers=page, next=following))


def describe_producer(request: DescribeProducer, state: ShardState) -> handlers.Decision:
    body = ProducerReply(producer=_description(handlers.find_producer(request.producer, state), state))
    return handlers.Decision((), lambda _: body)


def delete_producer(request: DeleteProducer, state: ShardState) -> handlers.Decision:
    """Delete a named producer with its source positions. Its id is never used again, so its sender is shut out."""
    if request.token in state.commands:
        return handlers.Decision((), handlers.done)
    producer = handlers.find_producer(request.producer, state)
    if request.producer_id is not None:
        handlers.require_same(f"producer {request.producer!r}", request.producer_id, producer.producer_id)
    return handlers.Decision((e.ProducerDeleted(producer_id=producer.producer_id, token=request.token),), handlers.done)


def _producer_of(request: OpenProducer, state: ShardState) -> ProducerState | None:
    if request.name is not None:
        return state.producers.of_name(request.name)
    return None if request.producer_id is None else state.producers.get(request.producer_id)


def _is_shared(producer: ProducerState, secret: str) -> bool:
    name = producer.name or ""
    return bool(secret) and name == shared_name(name.rpartition("-")[0], secret)


def _repeated(request: OpenProducer, opened: ProducerState) -> handlers.Decision | Refusal:
    """Answer a request whose token has opened a producer before."""
    if request.name is not None and request.name != opened.name:
        return invalid(f"the token of this request has opened another producer than {request.name!r}: use a new token")
    if request.token != opened.token or opened.next_sequence > 0:
        return refuse(
            "fenced",
            f"this open request of producer {opened.producer_id} is outdated: the producer is at epoch "
            f"{opened.producer_epoch}, sequence {opened.next_sequence}",
        )
    return handlers.Decision((), _identity(opened.producer_id))


def _refused_incarnation(request: OpenProducer, known: ProducerState) -> Refusal | None:
    """Refuse an older program than the one that holds the name, and copies of what the holder itself has sent."""
    if request.incarnation is None or request.incarnation > known.incarnation:
        return None
    if request.incarnation == known.incarnation and request.producer_id is not None:
        return None
    return refuse(
        "fenced",
        f"producer {request.name!r} belongs to a program of incarnation {known.incarnation}, this one has incarnation "
        f"{request.incarnation}: it started earlier, or the clock of one of them was wrong",
    )


def _refused_deleted(request: OpenProducer, state: ShardState) -> Refusal | None:
    if request.name is None or request.incarnation is None:
        return None
    deleted = state.producers.deleted_incarnation(request.name, state.forgotten_ms)
    if request.incarnation > deleted:
        return None
    return refuse(
        "forgotten",
        f"producer {request.name!r} was deleted while incarnation {deleted} held it, and this program has incarnation "
        f"{request.incarnation}: it started before that, or the clock of one of them was wrong",
    )


def _forgotten_reason(request: OpenProducer) -> str:
    if request.name is not None:
        return (
            f"there is no producer {request.name!r} on this shard, although the request continues it: it was deleted; "
            "open the name without an id to create it again"
        )
    return (
        f"producer {request.producer_id} is not known: it was idle (ingest.producer_idle_seconds), or there were too "
        "many others (ingest.max_producers); open a new identity"
    )


def _opened(
    producer_id: int, producer_epoch: int, user: str, request: OpenProducer, *, replaced_id: int | None = None
) -> handlers.Decision:
    entry = e.ProducerOpened(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        token=request.token,
        user=user,
        name=request.name,
        incarnation=request.incarnation or 0,
        replaced_id=replaced_id,
    )
    return handlers.Decision((entry,), _identity(producer_id))


def _identity(producer_id: int) -> handlers.Answer:
    def answer(state: ShardState) -> AnyReplyBody:
        producer = state.producers[producer_id]
        return ProducerIdentity(
            producer_id=producer_id,
            producer_epoch=producer.producer_epoch,
            created=producer.new,
            previous_next_sequence=producer.previous_next_sequence,
        )

    return answer


def _description(producer: ProducerState, state: ShardState) -> ProducerInfo:
    assert producer.name is not None, "only named producers are described"
    return ProducerInfo(
        producer=producer.name,
        shard=state.shard,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        next_sequence=producer.next_sequence,
        last_used_at_ms=producer.last_at_ms,
        positions=tuple(
            TopicPosition(topic=state.topics_by_id[topic_id].name, topic_id=topic_id, position=position)
            for topic_id, position in producer.source_positions.items()
        ),
    )


COMMANDS: Final = (
    handlers.user_command(DescribePosition, describe_position),
    handlers.command(ListProducers, list_producers),
    handlers.command(DescribeProducer, describe_producer),
    handlers.command(DeleteProducer, delete_producer),
)
