"""Decide whether a consumer has read the history of this leader. Pure.

A consumer states points: chunks, and the terms that wrote them (headgate.reading.known_history). All of them
have to be of this history. Otherwise the ledger was put back to an older state while the consumer ran, or the
consumer reads another ledger: it has delivered records that do not exist here, and its acknowledgements would
cover records that it has not seen.

The refusal needs a barrier: a deposed leader does not know the terms after its own.
"""

from headgate.model.entries import SubscriptionType
from headgate.protocol import messages as m
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal


def judge_history(body: m.AnyRequestBody, state: ShardState) -> Refusal | None:
    """Return the refusal of a consumer that knows another history than ``state``, else None."""
    if not isinstance(body, m.ReaderRequest):
        return None
    foreign = next((point for point in body.history if not _contains(state, *point)), None)
    if foreign is None:
        return None
    chunk, term_id = foreign
    reason = (
        f"consumer {body.consumer!r} has read chunk {chunk} of term {term_id:x}, which is not in the ledger of shard "
        f"{state.shard}: an older ledger was put back, or the consumer reads another one. What it delivered after that "
        "is not part of this ledger"
    )
    if isinstance(body, m.RegisterConsumer) and body.subscription_type == SubscriptionType.CHECKPOINT:
        return Refusal("other_history", f"{reason}. Start it without its positions", after_barrier=True)
    return Refusal("other_history", f"{reason}. Start it again: it continues where this ledger is", after_barrier=True)


def _contains(state: ShardState, chunk: int, term_id: int) -> bool:
    return chunk <= state.chunk and state.terms.wrote(chunk, term_id)
