"""Decide requests for producer identities. Pure."""

from __future__ import annotations

from typing import Final

from controller.decisions.handlers import Answer, Decision, command
from controller.state.shard_state import ShardState
from coordinator.decisions.refusal import Refusal
from headgate.model import entries as e
from headgate.protocol import messages as m

LAST_PRODUCER_EPOCH = 2**31 - 1
"""An identity that has used all its epochs gets a new id. The epoch never wraps (librdkafka #3720)."""


def open_producer(request: m.OpenProducer, state: ShardState) -> Decision | Refusal:
    """Return a producer identity (the table of KIP-360, with a token instead of its "last epoch").

    * The token of the current incarnation: the same reply again, regardless of the other fields.
    * The token of an earlier incarnation: fenced. It is a delayed copy and must not fence a later
      incarnation.
    * A name: its next incarnation, which fences the previous one.
    * An id, alone or with a name, at its current epoch: the next epoch. An id that is not the
      name's, or any other epoch: fenced. Its sender is a stale producer, even if that id was
      forgotten and the epoch numbers match.
    * An unknown name or id, or no epochs left: a new id at epoch 0.
    """
    known_id = request.producer_id if request.name is None else state.producers.names.get(request.name)
    known = state.producers.get(known_id) if known_id is not None else None
    if known is None:
        return _opened(state.next_id, 0, request)
    if known.token == request.token:
        return Decision((), _identity(known.producer_id))
    if request.token in known.earlier_tokens:
        return Refusal(
            "fenced",
            f"this open request of producer {known.producer_id} is outdated: the producer is at epoch "
            f"{known.producer_epoch}",
            after_barrier=True,
        )
    current = known.producer_id, known.producer_epoch
    if request.producer_id is not None and (request.producer_id, request.producer_epoch) != current:
        return Refusal(
            "fenced",
            f"producer {known.producer_id} is at epoch {known.producer_epoch}; this request is for epoch "
            f"{request.producer_epoch} of producer {request.producer_id}",
            after_barrier=True,
        )
    if known.producer_epoch >= LAST_PRODUCER_EPOCH:
        return _opened(state.next_id, 0, request)
    return _opened(known.producer_id, known.producer_epoch + 1, request)


def _opened(producer_id: int, producer_epoch: int, request: m.OpenProducer) -> Decision:
    entry = e.ProducerOpened(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        token=request.token,
        name=request.name,
    )
    return Decision((entry,), _identity(producer_id))


def _identity(producer_id: int) -> Answer:
    def answer(state: ShardState) -> m.AnyReplyBody:
        producer = state.producers[producer_id]
        return m.ProducerIdentity(
            producer_id=producer_id,
            producer_epoch=producer.producer_epoch,
            source_position=producer.source_position,
        )

    return answer


COMMANDS: Final = (command(m.OpenProducer, open_producer),)
