"""Large messages are sent in parts, and are put together whatever the network does with the parts."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.protocol.codec import MAX_PARTS, PART_BYTES, PartCollector, split_message
from headgate.protocol.replies import MessagePart

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
