"""The digest depends on what a batch means, and on nothing else."""

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.protocol import codec
from headgate.protocol.codec import batch_digest
from headgate.protocol.requests import Acknowledgement, ProduceBatch, Record, RecordHeader

PRODUCED = ProduceBatch(
    topic="orders",
    records=[Record(b"ab", b"c", 7), Record(b"", b"de", 2**63 - 1)],
    headers=[RecordHeader(0, "x", b"1"), RecordHeader(1, "y", b"")],
    producer_id=2,
    producer_epoch=1,
    sequence=5,
    source_position=b"line 9",
    topic_id=1,
)


def test_the_digest_is_the_documented_one() -> None:
    records, headers = [[b"ab", b"c", 7], [b"", b"de", 2**63 - 1]], [[0, "x", b"1"], [1, "y", b""]]
    content = msgspec.msgpack.encode(["orders", b"line 9", records, headers])

    assert batch_digest(PRODUCED) == hashlib.sha256(content).digest()[:16]


OTHER_HEADERS = (
    [],
    PRODUCED.headers[::-1],
    PRODUCED.headers[:1],
    [RecordHeader(0, "x1", b""), PRODUCED.headers[1]],
    [RecordHeader(1, "x", b"1"), PRODUCED.headers[1]],
)
OTHERS: list[dict[str, Any]] = [
    {"topic": "payments"},
    {"source_position": b"line 8"},
    {"source_position": None, "topic_id": None},
    {"source_position": b""},
    {"records": PRODUCED.records[::-1]},
    {"records": PRODUCED.records[:1]},
    {"records": [Record(b"a", b"bc", 7), PRODUCED.records[1]]},
    {"records": [Record(b"ab", b"cd", 7), Record(b"", b"e", 2**63 - 1)]},
    {"records": [Record(b"ab", b"c", 8), PRODUCED.records[1]]},
    *({"headers": headers} for headers in OTHER_HEADERS),
]


@pytest.mark.parametrize("change", OTHERS, ids=lambda value: str(value)[:60])
def test_other_content_has_another_digest(change: dict[str, Any]) -> None:
    assert batch_digest(PRODUCED) != batch_digest(msgspec.structs.replace(PRODUCED, **change))


def test_what_finds_the_batch_is_not_part_of_it() -> None:
    found = msgspec.structs.replace(PRODUCED, producer_id=77, producer_epoch=9, sequence=12)

    assert batch_digest(PRODUCED) == batch_digest(found)


def test_the_encoding_of_the_request_is_not_content() -> None:
    """Another encoder may write 7 in nine bytes, lengths in five, and fields in another order."""
    record = b"\xdd\x00\x00\x00\x03\xc6\x00\x00\x00\x01k\xc6\x00\x00\x00\x01v\xcf" + (7).to_bytes(8, "big")
    body = b"\x83\xa7records\xdd\x00\x00\x00\x01" + record + b"\xa5topic\xd9\x01t\xa4type\xa7produce"
    request = codec.decode_request(b"\x84\xaarequest_id\x01\xa9client_id\xa1c\xa8protocol\x02\xa4body" + body)

    assert isinstance(request.body, ProduceBatch)
    assert batch_digest(request.body) == batch_digest(ProduceBatch(topic="t", records=[Record(b"k", b"v", 7)]))


texts = st.binary(max_size=3)
batches = st.builds(
    ProduceBatch,
    topic=st.just("t"),
    records=st.lists(st.builds(Record, texts, texts, st.integers(0, 3)), max_size=4),
    headers=st.lists(st.builds(RecordHeader, st.integers(0, 3), st.sampled_from(["", "a", "ab"]), texts), max_size=3),
)


@given(first=batches, second=batches)
def test_different_batches_have_different_digests(first: ProduceBatch, second: ProduceBatch) -> None:
    """Bytes that move from one field to the next are other content, too."""
    assert (batch_digest(first) == batch_digest(second)) is (first == second)


@pytest.mark.parametrize("kind", [Record, RecordHeader, Acknowledgement], ids=lambda kind: kind.__name__)
def test_a_surplus_element_is_refused(kind: type[msgspec.Struct]) -> None:
    """It has no name, so a leader cannot know what it ignores: the digest would not cover it either."""
    samples = {Record: (b"k", b"v", 0), RecordHeader: (0, "n", b"v"), Acknowledgement: (0, 1, 0, 5, 1)}
    sample = samples[kind]

    assert kind(*sample) == msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=kind)
    with pytest.raises(msgspec.ValidationError, match="at most length"):
        msgspec.msgpack.decode(msgspec.msgpack.encode((*sample, b"more")), type=kind)
