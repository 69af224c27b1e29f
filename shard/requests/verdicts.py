"""Judge a batch: accept it, recognize a duplicate, or refuse it.

The state includes what is in flight, so exactly-once storage costs no waiting. The first match wins,
in this order, which is that of the table in docs/protocol.md:

1.  malformed, or a batch without a ``leader_epoch`` → ``invalid``
2.  for another term → ``not_leader``
3.  the term has reached the ``max_term_age_ms`` of the request → ``expired``
4.  the producer is unknown, or another user's → ``forgotten``, after a barrier
5.  producer epoch below the stored one → ``fenced``, after a barrier
6.  producer epoch above the stored one, not at sequence 0 → ``out_of_order``, after a barrier
7.  further ahead than the next sequence → ``out_of_order``, after a barrier
8.  older than the window → ``committed``, ``duplicate``, no placements
9.  a sequence in the window, with other content → ``invalid``, after a barrier
10. a sequence in the window, finished or in flight → ``committed``, ``duplicate``
11. the user has no right to it → ``forbidden``, after a barrier
12. the topic does not exist → ``invalid``, after a barrier
13. an external topic, another ``topic_id``, or a position not kept or behind a gap → ``invalid``, after a barrier
14. a record is too large, has no key, or has headers that it may not have → ``invalid``
15. 128 batches are in flight, or too many bytes wait → ``unavailable``
16. anything else → ``committed``

A producer of another user counts as unknown (row 4): ids are random, and nothing shows that one was
guessed. A repetition is answered although its user has lost the right (row 11): "not stored" would be
untrue. A topic that was created again has another id, and a name has positions in at most 1000 topics
(row 13). If a position follows another one, an older ledger was put back under a program that continues behind what it
had sent, and would do so after its next start, too. A batch without a producer skips rows 4 to 10. A repetition is
recognized before its topic is looked up, because the topic may have been deleted since. An unknown producer is refused
at sequence 0 too, which may be a delayed copy. Row 9 compares digests: an equal number of records would report another
batch as stored. A batch older than the window (row 8) has no digest left.

Refusals that end a producer's session, or depend on the state, wait for a barrier: a deposed leader
judges on an outdated state (Redpanda #12712).
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from headgate.ledger.chunk import RecordColumns
from headgate.model import entries as e
from headgate.model.headers import MAX_HEADER_BYTES, counted_bytes, wrong_headers
from headgate.model.layout import key_hash
from headgate.protocol import requests
from headgate.protocol.codec import MURMUR_DIGEST_BYTES, batch_digest
from headgate.protocol.request_fields import MAX_RECORD_BYTES, ReaderRequest
from shard.access.rules import AccessRules, refuse_access
from shard.state.producers import MAX_SOURCE_POSITIONS, WINDOW, ProducerState
from shard.state.shard_state import ShardState
from shard.state.topic import Topic
from shard.subscriptions.refusal import Refusal, invalid, refuse

_LARGE_RECORD_BYTES: Final = MAX_RECORD_BYTES - MAX_HEADER_BYTES
"""Headers make no smaller record too large."""


def route_batch(
    topic: Topic, batch: requests.ProduceBatch, digest_bytes: int = MURMUR_DIGEST_BYTES
) -> tuple[e.RecordsStored, RecordColumns]:
    """Route each record to the active segment of its key's hash, at its next offset.

    Return the entry for ``batch``, which reserves the offsets once it is applied, and its records segment by segment,
    in the order of the batch, with the offset of each. ``digest_bytes``: see `batch_digest`.
    """
    segments = topic.layout.route(map(key_hash, [record.key for record in batch.records]))
    grouped: defaultdict[int, list[requests.Record]] = defaultdict(list)
    for segment, record in zip(segments, batch.records, strict=True):
        grouped[segment].append(record)
    placements, found = [], RecordColumns(topic_id=[topic.topic_id] * len(segments))
    for segment, placed in sorted(grouped.items()):
        known, first_offset = topic.layout.segments[segment], topic.tails[segment].next_offset
        placements.append(e.Placement(segment, known.first_hash, known.last_hash, first_offset, len(placed)))
        found.segment += [segment] * len(placed)
        found.offset += range(first_offset, first_offset + len(placed))
    # Other columns in one pass: a batch may have a record for each of thousands of segments.
    records = [record for placement in placements for record in grouped[placement.segment]]
    found.timestamp_ms = [record.timestamp_ms for record in records]
    found.key, found.value = [record.key for record in records], [record.value for record in records]
    order = sorted(range(len(segments)), key=segments.__getitem__) if batch.headers else ()
    found.headers = [batch.headers_by_record.get(each, ()) for each in order] or [()] * len(segments)
    entry = e.RecordsStored(
        topic_id=topic.topic_id,
        count=len(segments),
        placements=placements,
        size_bytes=sum(map(len, found.key))
        + sum(map(len, found.value))
        + sum([len(each.name.encode()) + len(each.value) for each in batch.headers]),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence or 0,
        source_position=batch.source_position,
        digest=b"" if batch.producer_id is None else batch_digest(batch, digest_bytes),
    )
    return entry, found


def refused_record(batch: requests.ProduceBatch) -> str | None:
    """Return which record of ``batch`` is too large, has no key, or has headers that it may not have; or None."""
    headers = batch.headers_by_record
    if headers and (last := max(headers)) >= len(batch.records):
        return f"the batch has {len(batch.records)} records, and a header for record {last}"
    for index, record in enumerate(batch.records):
        size = len(record.key) + len(record.value)
        if headers and (own := headers.get(index)):
            if (wrong := wrong_headers(own, reserved=batch.reserved_headers)) is not None:
                return f"record {index} has {wrong}"
            size += counted_bytes(own) if size > _LARGE_RECORD_BYTES else 0
        if size > MAX_RECORD_BYTES:
            return f"record {index} has {size} bytes of key, value and headers; the limit is {MAX_RECORD_BYTES}"
        if not record.key:
            return f"record {index} has an empty key: records without a key would all have the same one"
    return None


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept the batch: it is the next one of its producer, or has no producer."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was accepted before, in ``chunk``. Reply once that chunk is durable."""

    chunk: int
    placements: list[e.Placement] | None
    topic_id: int | None = None
    """The topic that stores the batch; None if that is forgotten. It may have been deleted since."""


Judgement = Accept | Duplicate | Refusal


def judge_term(request: requests.Request, leader_epoch: int) -> Refusal | None:
    """Row 2: return the refusal of a request that is not for this term, else None."""
    if request.leader_epoch == leader_epoch:
        return None
    if request.leader_epoch is not None:
        return Refusal(
            "not_leader", f"this node leads at epoch {leader_epoch}, the request is for {request.leader_epoch}"
        )
    if isinstance(request.body, requests.ProduceBatch):
        return Refusal("invalid", "a batch without leader_epoch cannot be kept in order")
    if isinstance(request.body, requests.TransferShard):
        return Refusal("not_leader", "a transfer is for one term: state its leader_epoch")
    return None


def judge_deadline(request: requests.Request, term_age_ms: int) -> Refusal | None:
    """Row 3: return the refusal of a request of this term whose deadline has passed, else None.

    A request waits in a socket while this process is frozen, and in a broker while the connection is slow. Its client
    has reported a failure since, so it must have no effect. The deadline is an age of the term: the clocks of client
    and leader need not agree. ``term_age_ms``: by a clock that also runs while the process is frozen.
    """
    if request.max_term_age_ms is None:
        return None
    if request.leader_epoch is None:
        return Refusal("invalid", "max_term_age_ms requires the leader_epoch whose clock it is for")
    if term_age_ms < request.max_term_age_ms:
        return None
    return Refusal(
        "expired",
        f"this term has lasted {term_age_ms} ms, the request is valid below {request.max_term_age_ms} ms",
        term_age_ms=term_age_ms,
    )


def judge_history(body: requests.AnyRequestBody, state: ShardState) -> Refusal | None:
    """Return the refusal of a consumer that knows another history than ``state``, else None.

    A consumer states points: chunks, and the terms that wrote them (headgate.model.positions). All of them
    have to be of this history. Otherwise the ledger was put back to an older state while the consumer ran, or the
    consumer reads another ledger: it has delivered records that do not exist here, and its acknowledgements would
    cover records that it has not seen. A deposed leader does not know the terms after its own: hence the barrier.
    """
    if not isinstance(body, ReaderRequest | requests.SeekSubscription):
        return None
    known = state.terms.wrote
    foreign = next((point for point in body.history if point[0] > state.chunk or not known(*point)), None)
    if foreign is None or _is_of_another_topic(body, state):
        return None
    chunk, term_id = foreign
    if isinstance(body, requests.SeekSubscription):
        reason = f"the positions are of chunk {chunk} of term {term_id:x}, which shard {state.shard} does not have"
        return refuse("other_history", f"{reason}: an older ledger was put back, or they are of another one")
    reason = (
        f"consumer {body.consumer!r} has read chunk {chunk} of term {term_id:x}, which is not in the ledger of shard "
        f"{state.shard}: an older ledger was put back, or the consumer reads another one. What it delivered after that "
        "is not part of this ledger"
    )
    remedy = "Start it again, a CHECKPOINT consumer without its positions: it continues where this ledger is"
    return refuse("other_history", f"{reason}. {remedy}")


def _is_of_another_topic(body: requests.AnyRequestBody, state: ShardState) -> bool:
    """Return whether a registration is refused because its positions are of a topic that was deleted.

    It may have been on another shard, whose history they name: nothing was put back.
    """
    if not isinstance(body, requests.RegisterConsumer) or not body.positions or body.positions_topic_id is None:
        return False
    topic = state.topics.get(body.topic)
    return topic is None or topic.topic_id != body.positions_topic_id


def judge_batch(
    batch: requests.ProduceBatch, state: ShardState, durable: int, *, user: str, rules: AccessRules
) -> Judgement:
    """Rows 4 to 16, for a batch of ``user`` in this term. The bytes of row 15 are known to the leader only.

    ``durable`` is the newest durable chunk. Whatever ``state`` holds beyond it is in flight.
    """
    if batch.producer_id is None or batch.sequence is None:
        return refuse_access(rules, user, batch) or _refused_content(batch, state) or Accept()
    producer = state.producers.get(batch.producer_id)
    if producer is None or producer.user != user:  # row 4
        return refuse(
            "forgotten",
            f"producer {batch.producer_id} is not known: deleted, replaced, or idle (ingest.producer_idle_seconds)",
        )
    return (
        _judge_order(batch, batch.sequence, producer)
        or refuse_access(rules, user, batch)
        or _refused_content(batch, state)
        or _refused_position(batch, state, producer)
        or _refused_window(batch, producer, durable)
        or Accept()
    )


def _judge_order(batch: requests.ProduceBatch, sequence: int, producer: ProducerState) -> Duplicate | Refusal | None:
    """Rows 5 to 10."""
    if batch.producer_epoch < producer.producer_epoch:
        return refuse(
            "fenced",
            f"producer {producer.name or producer.producer_id} is at epoch {producer.producer_epoch}, not "
            f"{batch.producer_epoch}: a newer program has replaced this one",
        )
    next_sequence = producer.next_sequence if batch.producer_epoch == producer.producer_epoch else 0
    if sequence == next_sequence:
        return None
    if batch.producer_epoch > producer.producer_epoch:
        return refuse(
            "out_of_order", f"producer epoch {batch.producer_epoch} is new and must start at sequence 0, not {sequence}"
        )
    if sequence > producer.next_sequence:
        return refuse("out_of_order", f"sequence {sequence} arrived before {producer.next_sequence}")
    # The window ends before `next_sequence`, and rows 6 and 7 make sequences contiguous from 0.
    back = producer.next_sequence - sequence
    if back > len(producer.finished):
        return Duplicate(0, None)
    known = producer.finished[-back]
    if batch_digest(batch, len(known.digest)) != known.digest:
        return invalid(
            f"sequence {sequence} of producer {producer.producer_id} was used for a batch with other content; "
            "a retry must have the same content, a new batch the next sequence"
        )
    return Duplicate(known.chunk, known.placements, known.topic_id)


def _refused_content(batch: requests.ProduceBatch, state: ShardState) -> Refusal | None:
    """Rows 12 to 14."""
    topic = state.topics.get(batch.topic)
    if topic is None:
        return invalid(f"there is no topic {batch.topic!r}: check its name (headgate topic list), or create it")
    if topic.external is not None:
        return invalid(f"topic {batch.topic!r} is external: produce to its source")
    if batch.topic_id not in (None, topic.topic_id):
        return invalid(
            f"topic {batch.topic!r} was deleted and created again: it has id {topic.topic_id}, and the batch is for id "
            f"{batch.topic_id}; open it again to learn the position in it"
        )
    reason = refused_record(batch)
    return None if reason is None else Refusal("invalid", reason)


def _refused_position(batch: requests.ProduceBatch, state: ShardState, producer: ProducerState) -> Refusal | None:
    """Row 13: return the refusal of a source position that could not be kept, or would hide a gap."""
    if batch.source_position is None:
        return None
    if producer.name is None:
        return invalid("a source position belongs to a producer with a name: open it under one")
    known, topic_id = producer.source_positions, state.topics[batch.topic].topic_id
    if batch.previous_position not in (None, known.get(topic_id)):
        return invalid(
            f"the records do not continue at the source position that producer {producer.name!r} has in topic "
            f"{batch.topic!r}: an older ledger was put back; open the topic again, which says where to continue"
        )
    if len(known) >= MAX_SOURCE_POSITIONS and topic_id not in known:
        return invalid(
            f"producer {producer.name!r} has positions in {len(known)} topics already: use another name for others"
        )
    return None


def _refused_window(batch: requests.ProduceBatch, producer: ProducerState, durable: int) -> Refusal | None:
    """Row 15: one more in flight would displace a batch that is not durable yet."""
    if batch.producer_epoch != producer.producer_epoch or producer.finished.has_capacity(durable):
        return None
    return Refusal("unavailable", f"more than {WINDOW} batches of producer {producer.producer_id} are in flight")
