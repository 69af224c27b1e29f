"""What is wrong with a message surfaces when it is decoded; digests of batches, parts, and names of MQTT topics."""

import hashlib
import random
from functools import partial
from typing import Any

import mmh3
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.protocol import codec
from headgate.protocol import codec as t
from headgate.protocol.codec import (
    MAX_PARTS,
    MURMUR_DIGEST_BYTES,
    PAGE_BYTES,
    PART_BYTES,
    SHA_DIGEST_BYTES,
    PartCollector,
    Presence,
    batch_digest,
    cut_page,
    encode,
    follows,
    presence_topic,
    read_presence,
    split_message,
)
from headgate.protocol.replies import Done, MessagePart, Rejected
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import (
    Acknowledgement,
    OpenProducer,
    ProduceBatch,
    Record,
    RecordHeader,
    RegisterConsumer,
    Request,
)


def test_the_presence_of_a_client_has_its_address() -> None:
    presence = read_presence(presence_topic("c", "ada/client-1"), encode(Presence(client_id="client-1", online=True)))

    assert "ada/client-1" == presence.client_id


def test_the_presence_of_another_client_is_invalid() -> None:
    """The broker vouches for the topic only."""
    data = encode(Presence(client_id="client-2", online=False))

    with pytest.raises(msgspec.DecodeError, match="presence of client 'client-2' from 'ada/client-1'"):
        read_presence(presence_topic("c", "ada/client-1"), data)


def test_an_address_is_a_user_and_a_client_id() -> None:
    address = t.client_address("ada", "client-1")

    assert ("ada", "client-1") == (t.user_of(address), t.client_of(address))


def test_filters_of_presences_and_publications_match_those_of_all_clients() -> None:
    assert "headgate/c/clients/+/+/presence" == t.presence_filter("c")
    assert ("headgate/c/publish/#", "headgate/c/devices/+/publish/#") == t.all_publications_filters("c")


def test_the_session_of_a_shard_for_devices_has_the_same_id_in_each_term() -> None:
    assert "headgate:c:shard:3:topic:7:000000000000002a" == t.device_session_id("c", 3, 7, 42)


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
digest = partial(batch_digest, size_bytes=MURMUR_DIGEST_BYTES)


def test_the_digest_is_the_documented_one() -> None:
    records, headers = [[b"ab", b"c", 7], [b"", b"de", 2**63 - 1]], [[0, "x", b"1"], [1, "y", b""]]
    content = msgspec.msgpack.encode(["orders", b"line 9", records, headers])

    assert batch_digest(PRODUCED, SHA_DIGEST_BYTES) == hashlib.sha256(content).digest()[:16]
    assert digest(PRODUCED) == mmh3.hash_bytes(content)[:8]


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
    assert digest(PRODUCED) != digest(msgspec.structs.replace(PRODUCED, **change))


def test_what_finds_the_batch_is_not_part_of_it() -> None:
    found = msgspec.structs.replace(PRODUCED, producer_id=77, producer_epoch=9, sequence=12)

    assert digest(PRODUCED) == digest(found)


def test_the_encoding_of_the_request_is_not_content() -> None:
    """Another encoder may write 7 in nine bytes, lengths in five, and fields in another order."""
    record = b"\xdd\x00\x00\x00\x03\xc6\x00\x00\x00\x01k\xc6\x00\x00\x00\x01v\xcf" + (7).to_bytes(8, "big")
    body = b"\x83\xa7records\xdd\x00\x00\x00\x01" + record + b"\xa5topic\xd9\x01t\xa4type\xa7produce"
    request = codec.decode_request(b"\x84\xaarequest_id\x01\xa9client_id\xa1c\xa8protocol\x02\xa4body" + body)

    assert isinstance(request.body, ProduceBatch)
    assert digest(request.body) == digest(ProduceBatch(topic="t", records=[Record(b"k", b"v", 7)]))


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
    assert (digest(first) == digest(second)) is (first == second)


@pytest.mark.parametrize("kind", [Record, RecordHeader, Acknowledgement], ids=lambda kind: kind.__name__)
def test_a_surplus_element_is_refused(kind: type[msgspec.Struct]) -> None:
    """It has no name, so a leader cannot know what it ignores: the digest would not cover it either."""
    samples = {Record: (b"k", b"v", 0), RecordHeader: (0, "n", b"v"), Acknowledgement: (0, 1, 0, 5, 1)}
    sample = samples[kind]

    assert kind(*sample) == msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=kind)
    with pytest.raises(msgspec.ValidationError, match="at most length"):
        msgspec.msgpack.decode(msgspec.msgpack.encode((*sample, b"more")), type=kind)


LARGE = random.Random(1).randbytes(3 * PART_BYTES + 7)


def parts_of(payload: bytes, number: int = 1, leader_epoch: int = 1, shard: int = 0) -> list[MessagePart]:
    return list(split_message(payload, shard=shard, leader_epoch=leader_epoch, number=number))


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_parts_in_any_order_and_repeated_make_up_the_message(order, repeated):
    parts, collector = parts_of(LARGE), PartCollector()
    found = [collector.add(parts[index]) for each in order for index in ([each, each] if each in repeated else [each])]

    assert [message for message in found if message is not None] == [LARGE]


@pytest.mark.parametrize("lost", range(4))
def test_a_message_with_a_lost_part_is_lost_and_the_next_one_arrives(lost):
    collector = PartCollector()
    parts = parts_of(LARGE)

    assert [collector.add(part) for part in parts if part.index != lost] == [None] * 3
    assert [collector.add(part) for part in parts_of(LARGE, number=2)][-1] == LARGE
    assert collector.add(parts[lost]) is None, "it came too late"


def test_a_later_term_comes_after_an_earlier_one_and_shards_are_independent():
    collector = PartCollector()
    collector.add(parts_of(LARGE, number=9)[0])
    collector.add(parts_of(LARGE, shard=1, number=5)[0])

    assert [collector.add(part) for part in parts_of(LARGE, leader_epoch=2)][-1] == LARGE
    assert [collector.add(part) for part in parts_of(LARGE, shard=1, number=5)][-1] == LARGE


def test_a_message_of_another_ledger_does_not_wait_for_the_epoch_of_the_former_one():
    """Its cluster was moved, or set up again, while a message of the former one was under way."""
    collector = PartCollector()
    collector.add(parts_of(LARGE, leader_epoch=9)[0])
    other = [msgspec.structs.replace(part, ledger_id=b"other") for part in parts_of(LARGE)]
    assert [collector.add(part) for part in other][-1] == LARGE


@pytest.mark.parametrize(
    "hostile",
    [{"index": -1}, {"index": 4}, {"count": 0}, {"count": MAX_PARTS + 1}, {"content": b"x" * (PART_BYTES + 1)}],
    ids=["negative", "beyond the last", "no parts", "too many", "too large"],
)
def test_invalid_parts_are_ignored(hostile):
    fields = {"shard": 0, "leader_epoch": 1, "number": 1, "index": 0, "count": 4, "content": b"", **hostile}
    collector = PartCollector()

    assert collector.add(MessagePart(**fields)) is None
    assert [collector.add(part) for part in parts_of(LARGE)][-1] == LARGE


@pytest.mark.parametrize(("count", "complete"), [(64, True), (65, False)])
def test_a_message_has_at_most_64_parts(count: int, complete: bool) -> None:
    collector = PartCollector()
    parts = [MessagePart(shard=0, leader_epoch=1, number=1, index=n, count=count, content=b"x") for n in range(count)]

    assert (b"x" * count if complete else None) == [collector.add(part) for part in parts][-1]


def test_a_part_of_an_earlier_message_is_ignored_while_a_later_one_is_incomplete() -> None:
    collector = PartCollector()
    *later, last = parts_of(LARGE, number=2)
    for part in later:
        collector.add(part)

    assert [None] * 4 == [collector.add(part) for part in parts_of(LARGE, number=1)]
    assert LARGE == collector.add(last)


# A batch with a part of an identity is invalid: a misspelt field would have it stored twice, or not at all.


PRODUCE = {"type": "produce", "topic": "orders", "records": [[b"k", b"v", 0]]}
OPEN = {"type": "open_producer", "token": "t"}


def decoded(body: dict[str, Any]) -> Request:
    return codec.decode_request(
        msgspec.msgpack.encode({"request_id": 1, "client_id": "c", "protocol": PROTOCOL_VERSION, "body": body})
    )


@pytest.mark.parametrize(
    ("identity", "problem"),
    [
        ({"producer_ID": 2, "sequence": 0}, "sequence without producer_id"),
        ({"producer_id": None, "sequence": 7}, "sequence without producer_id"),
        ({"producer_id": 2, "seqence": 7}, "producer_id without sequence"),
        ({"producer_epoch": 1}, "producer_epoch without producer_id"),
    ],
    ids=["misspelt id", "no id", "misspelt sequence", "epoch alone"],
)
def test_a_part_of_an_identity_is_invalid(identity: dict[str, Any], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        decoded(PRODUCE | identity)


@pytest.mark.parametrize("identity", [{}, {"producer_id": 2, "sequence": 0}, {"producer_id": None, "sequence": None}])
def test_a_whole_identity_and_none_are_valid(identity: dict[str, Any]) -> None:
    request = decoded(PRODUCE | identity)

    assert request == codec.decode_request(codec.encode(request)), "the first sequence, 0, is sent"


def test_an_epoch_to_continue_needs_its_id() -> None:
    with pytest.raises(msgspec.ValidationError, match="producer_epoch without producer_id"):
        decoded(OPEN | {"producer_epoch": 3})
    assert isinstance(decoded(OPEN | {"producer_epoch": 0}).body, OpenProducer)


# Only a CHECKPOINT consumer has positions of its own: with another type the leader's would silently apply.


REGISTER = {"type": "register", "topic": "orders", "subscription": "billing", "consumer": "b-1", "incarnation": 1}


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
def test_positions_of_another_type_are_invalid(kind: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="positions: only for type CHECKPOINT"):
        decoded({**REGISTER, "subscription_type": kind, "positions": [[0, 1]]})


def test_positions_arrive_as_pairs() -> None:
    body = RegisterConsumer(
        **{name: value for name, value in REGISTER.items() if name != "type"},
        subscription_type="CHECKPOINT",
        positions=[(0, 5), (2, 0)],
    )
    request = Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="c", body=body)

    assert request == codec.decode_request(codec.encode(request))


# Lists are cut into pages without gaps or repetitions.


NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,8}\Z")


def all_pages(items: dict[tuple[str, ...], Rejected], page_bytes: int) -> list[list[Rejected]]:
    pages: list[list[Rejected]] = []
    after: str | None = None
    while True:
        page, after = cut_page(
            ((names, item) for names, item in sorted(items.items()) if follows(after, *names)), page_bytes
        )
        pages.append(page)
        if after is None:
            return pages


@given(st.dictionaries(st.tuples(NAMES, NAMES), st.integers(0, 300), max_size=20), st.integers(1, 1000))
def test_the_pages_contain_every_item_once_in_order(sizes, page_bytes):
    items = {names: Rejected(verdict="invalid", reason="x" * size) for names, size in sizes.items()}

    pages = all_pages(items, page_bytes)

    assert [item for page in pages for item in page] == [item for _, item in sorted(items.items())]
    for page in pages:
        assert len(page) <= 1 or sum(len(codec.encode(item)) for item in page) <= page_bytes


def test_a_page_is_as_full_as_its_size_allows():
    item = Done()
    items = {(name,): item for name in "abcde"}

    assert [len(page) for page in all_pages(items, 2 * len(codec.encode(item)))] == [2, 2, 1]


def test_only_the_items_of_one_page_are_built():
    built: list[str] = []

    def describe(name: str) -> Done:
        built.append(name)
        return Done()

    cut_page((((name,), describe(name)) for name in "abcde"), 2 * len(codec.encode(Done())))

    assert built == ["a", "b", "c"]


def test_a_page_has_256_kib() -> None:
    assert PAGE_BYTES == 262_144
