"""The verdicts row by row; test_protocol_document.py covers their order."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.model import entries as e
from headgate.model.identifiers import ANONYMOUS
from headgate.model.layout import segment_hash
from headgate.protocol.codec import MURMUR_DIGEST_BYTES, SHA_DIGEST_BYTES, batch_digest
from headgate.protocol.request_fields import MAX_RECORD_BYTES, PROTOCOL_VERSION
from headgate.protocol.requests import ListTopics, ProduceBatch, Record, RecordHeader, Request
from shard.access.rules import OPEN, AccessRules
from shard.requests import verdicts
from shard.requests.verdicts import Accept, Duplicate, Judgement, judge_term, refused_record, route_batch
from shard.state.producers import MAX_SOURCE_POSITIONS, WINDOW
from shard.state.shard_state import ShardState
from shard.state.topic import Topic
from shard.subscriptions.refusal import Refusal
from tests.support.samples.stored_batches import stored_batch

PRODUCER = 9
HEADERS = [RecordHeader(0, "a", b"")]


def batch(
    sequence: int | None = 0, *, epoch: int = 0, producer: int | None = PRODUCER, records: int = 1, **kwargs: Any
) -> ProduceBatch:
    given = [Record(b"k", kwargs.pop("value", b"v"), 0)] * records
    fields = {"topic": "orders", "producer_id": producer, "producer_epoch": epoch, "sequence": sequence}
    return ProduceBatch(records=given, **fields | kwargs)


def shard(batches: int = 0, *, epoch: int = 0) -> ShardState:
    """Return a shard whose producer has stored ``batches`` batches of one record, each in its own chunk from 2.

    As after a raise of the feature level, the window has digests of both algorithms.
    """
    state = ShardState(0)
    created = e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t")
    opened = e.ProducerOpened(producer_id=PRODUCER, producer_epoch=epoch, token="x")
    state.apply_all([e.TermStarted(leader_epoch=1, instance="a"), created, opened], chunk=1, at_ms=0)
    for n in range(batches):
        digest = batch_digest(batch(), MURMUR_DIGEST_BYTES if n % 2 else SHA_DIGEST_BYTES)
        stored = stored_batch(n, n, producer_id=PRODUCER, producer_epoch=epoch, digest=digest)
        state.apply_all([stored], chunk=2 + n, at_ms=0)
    return state


def request(body: ProduceBatch | ListTopics, leader_epoch: int | None) -> Request:
    return Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="client", leader_epoch=leader_epoch, body=body)


def judge_batch(judged: ProduceBatch, state: ShardState, durable: int) -> Judgement:
    return verdicts.judge_batch(judged, state, durable, user=ANONYMOUS, rules=OPEN)


def verdict(judgement: Judgement) -> tuple[str, bool]:
    assert isinstance(judgement, Refusal)
    return judgement.verdict, judgement.after_barrier


@pytest.mark.parametrize("epoch", [0, 2], ids=["older", "newer"])
def test_another_term_is_not_leader(epoch: int) -> None:
    """The epoch must be equal: older and newer ones are refused at once."""
    assert ("not_leader", False) == verdict(judge_term(request(batch(), epoch), 1))


def test_a_batch_of_this_term_passes_row_2() -> None:
    """Without an epoch, its order cannot be kept, however often it is repeated. Other requests need none."""
    assert judge_term(request(batch(), 1), 1) is None
    assert "invalid" == judge_term(request(batch(), None), 1).verdict
    assert judge_term(request(ListTopics(), None), 1) is None


def test_a_refusal_does_not_change_the_state() -> None:
    """In Redpanda the rejected first batch left an entry that blocked the retry."""
    state = shard()
    judge_batch(batch(5, producer=77), state, 1)
    judge_batch(batch(1), state, 1)

    assert {PRODUCER} == set(state.producers)
    assert Accept() == judge_batch(batch(0), state, 1)


# Name → batch, number of stored batches, newest durable chunk, judgement or (verdict, after a barrier).
ROWS: dict[str, tuple[ProduceBatch, int, int, Any]] = {
    # After a barrier, because a deposed leader may not know the topic.
    "row 12, an unknown topic": (batch(topic="other"), 0, 1, ("invalid", True)),
    "row 16, a newer producer epoch starts at 0": (batch(0, epoch=3), 2, 3, Accept()),
    "row 6, a newer producer epoch starts nowhere else": (batch(1, epoch=3), 1, 2, ("out_of_order", True)),
    # It was forgotten, so its first batch may be a delayed copy of a stored one.
    "row 4, an unknown producer at sequence 0": (batch(0, producer=77), 0, 1, ("forgotten", True)),
    "row 4, an unknown producer at a later sequence": (batch(5, producer=77), 0, 1, ("forgotten", True)),
    "row 10, a finished batch": (batch(1), 3, 4, Duplicate(3, [e.Placement(0, 0, 65535, 1, 1)], topic_id=1)),
    # The reply waits for the original's chunk, which is not durable yet.
    "row 10, a batch in flight": (batch(2), 3, 3, Duplicate(4, [e.Placement(0, 0, 65535, 2, 1)], topic_id=1)),
    "row 16, the next sequence while the last is in flight": (batch(3), 3, 2, Accept()),
    "row 7, a sequence ahead": (batch(4), 3, 4, ("out_of_order", True)),
    # In Restate, rejecting the first and accepting the second in one epoch lost the first.
    "row 7, the second batch after the first was refused": (batch(1), 0, 1, ("out_of_order", True)),
    # The original's offsets would be wrong for some of its records.
    "row 9, as many other records under the same sequence": (batch(1, value=b"w"), 3, 4, ("invalid", True)),
    "row 9, other headers under the same sequence": (batch(1, headers=HEADERS), 3, 4, ("invalid", True)),
    "row 9, the same records for another topic": (batch(1, topic="other"), 3, 4, ("invalid", True)),
    "row 9, a changed batch under the same sequence": (batch(1, records=2), 3, 4, ("invalid", True)),
    # Stored at least once, without deduplication.
    "row 16, a batch without a producer": (batch(None, producer=None), 0, 1, Accept()),
    "row 12, the same for an unknown topic": (batch(None, producer=None, topic="other"), 0, 1, ("invalid", True)),
}


@pytest.mark.parametrize(("judged", "batches", "durable", "expected"), ROWS.values(), ids=ROWS.keys())
def test_every_row_of_the_table(judged: ProduceBatch, batches: int, durable: int, expected: Any) -> None:
    judgement = judge_batch(judged, shard(batches), durable)

    assert expected == (verdict(judgement) if isinstance(expected, tuple) else judgement)


def test_an_older_producer_epoch_is_fenced_after_a_barrier() -> None:
    """Even if its sequence matches a finished batch of the newer epoch (Redpanda accepted that)."""
    assert ("fenced", True) == verdict(judge_batch(batch(0, epoch=0), shard(1, epoch=1), 2))


def test_older_than_the_window_is_a_duplicate_without_offsets() -> None:
    state = shard(WINDOW + 2)

    assert Duplicate(0, None) == judge_batch(batch(1), state, WINDOW + 3)
    assert isinstance(judge_batch(batch(2), state, WINDOW + 3), Duplicate)
    assert judge_batch(batch(2), state, WINDOW + 3).placements is not None


def test_batches_in_flight_are_limited_to_the_window() -> None:
    """With one more, the oldest one could no longer be replied to with its offsets."""
    state = shard(WINDOW)

    assert ("unavailable", False) == verdict(judge_batch(batch(WINDOW), state, 1))
    assert Accept() == judge_batch(batch(WINDOW), state, 2)
    assert Accept() == judge_batch(batch(0, epoch=1), state, 1), "its window is empty"


def test_a_batch_is_judged_for_its_user() -> None:
    """Row 4: the identity of another user is unknown, also to one who may do all. Without a right, no record counts."""
    assert ("forgotten", True) == verdict(verdicts.judge_batch(batch(), shard(), 1, user="eve", rules=OPEN))
    for each in (batch(), batch(None, producer=None)):
        assert "forbidden" == verdict(verdicts.judge_batch(each, shard(), 1, user=ANONYMOUS, rules=AccessRules({})))[0]


def test_a_repetition_is_recognized_after_its_topic_was_deleted_and_created_again() -> None:
    """The batch was stored, and is not stored again; its topic id says that the new topic does not contain it."""
    state = shard(1)
    deleted = e.TopicDeleted(topic_id=1, token="d")
    original = Duplicate(2, [e.Placement(0, 0, 65535, 0, 1)], topic_id=1)
    state.apply_all([deleted], chunk=3, at_ms=0)
    assert original == judge_batch(batch(0), state, 3)

    again = e.TopicCreated(topic_id=10, topic="orders", segments=1, token="again")
    state.apply_all([again], chunk=4, at_ms=0)
    assert original == judge_batch(batch(0), state, 4)


def test_a_source_position_is_stored_only_where_it_is_kept() -> None:
    """Otherwise the next program under the name would continue elsewhere, and skip records or store them again."""
    state, positioned = shard(), replace(batch(producer=5), topic_id=1, source_position=b"7")
    opened = e.ProducerOpened(producer_id=5, producer_epoch=0, token="n", name="import", incarnation=1)
    state.apply_all([opened], chunk=2, at_ms=0)
    assert Accept() == judge_batch(positioned, state, 2)
    assert ("invalid", True) == verdict(judge_batch(replace(positioned, topic_id=2), state, 2))
    assert ("invalid", True) == verdict(judge_batch(replace(positioned, producer_id=PRODUCER), state, 2))
    assert ("invalid", True) == verdict(judge_batch(replace(positioned, previous_position=b"6"), state, 2))

    state.producers[5].source_positions = dict.fromkeys(range(2, 2 + MAX_SOURCE_POSITIONS), b"")
    assert ("invalid", True) == verdict(judge_batch(positioned, state, 2))
    state.producers[5].source_positions[1] = state.producers[5].source_positions.pop(2)
    for previous, outcome in {None: Accept, b"": Accept, b"6": Refusal}.items():
        assert outcome is type(judge_batch(replace(positioned, previous_position=previous), state, 2))


def two_segments() -> Topic:
    state = ShardState(0)
    state.apply_all([e.TopicCreated(topic_id=1, topic="orders", segments=2, token="t")], chunk=1, at_ms=0)
    return state.topics["orders"]


def test_records_are_routed_by_hash_and_keep_their_order_in_each_segment() -> None:
    """Those of a segment follow each other, so a reader takes them as a whole. Each keeps its headers."""
    keys = [b"k%d" % n for n in range(1, 51)]  # The first one belongs to the later segment.
    records, headers = [Record(key, b"v" * 3, 7) for key in keys], [RecordHeader(n, "key", keys[n]) for n in range(50)]
    batch = ProduceBatch(topic="orders", records=records, headers=headers)
    topic = two_segments()
    topic.tails[1].next_offset = 100

    entry, columns = route_batch(topic, batch)

    low, high = ([key for key in keys if (segment_hash(key) < 0x8000) is low] for low in (True, False))
    assert [0] * len(low) + [1] * len(high) == columns.segment
    assert low + high == columns.key == [value for [(_, value)] in columns.headers]
    assert [*range(len(low)), *range(100, 100 + len(high))] == columns.offset
    assert [(0, 0), (1, 100)] == [(placement.segment, placement.first_offset) for placement in entry.placements]
    assert 50 == sum(placement.count for placement in entry.placements)


def with_headers(*headers: tuple[str, bytes], key: bytes = b"k", value: bytes = b"v", **fields: bool) -> ProduceBatch:
    """Return a batch of two records; the second one has the headers."""
    records = [Record(b"k", b"", 0), Record(key, value, 0)]
    return ProduceBatch(
        topic="orders", records=records, headers=[RecordHeader(1, *header) for header in headers], **fields
    )


@pytest.mark.parametrize(
    ("batch", "wrong"),
    [
        (with_headers(("a", b"1"), value=bytes(MAX_RECORD_BYTES - 3)), None),
        (with_headers(("a", b"1"), value=bytes(MAX_RECORD_BYTES - 2)), f"{MAX_RECORD_BYTES + 1} bytes of key, value"),
        (with_headers(key=b""), "an empty key"),
        (with_headers(("a", bytes(16 * 1024))), "headers of 16385 bytes"),
        (with_headers(*[("a", b"")] * 65), "65 headers; the limit is 64"),
        (with_headers(("", b"")), "a header without a name"),
        (with_headers(("headgate-reason", b"")), "the header 'headgate-reason'"),
        (with_headers(("headgate-reason", b""), reserved_headers=True), None),
    ],
    ids=[
        *("as large as possible", "too large", "no key", "headers too large", "too many headers", "no name"),
        *("a name of headgate's", "a copy with one"),
    ],
)
def test_the_reason_names_the_record_and_what_is_wrong(batch: ProduceBatch, wrong: str | None) -> None:
    """All records whose key is missing by mistake would have one key, in one segment."""
    found = refused_record(batch)

    assert found is None if wrong is None else (found or "").startswith(f"record 1 has {wrong}")


def test_a_header_of_no_record_is_refused() -> None:
    batch = msgspec.structs.replace(with_headers(), headers=[RecordHeader(n, "a", b"") for n in (0, 2)])

    assert refused_record(batch) == "the batch has 2 records, and a header for record 2"


def test_headers_are_routed_with_their_record() -> None:
    batch = msgspec.structs.replace(
        with_headers(("a", b"1"), ("a", b"")),
        headers=[RecordHeader(1, "a", b"1"), RecordHeader(0, "b", b""), RecordHeader(1, "a", b"")],
    )
    entry, columns = route_batch(two_segments(), batch)

    assert [(("b", b""),), (("a", b"1"), ("a", b""))] == columns.headers
    assert entry.size_bytes == len(b"k" + b"kv" + b"b" + b"a1" + b"a")
