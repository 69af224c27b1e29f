"""Only a reply of the leader makes an acknowledgement stored, whatever happens in between."""

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.client.decisions.unstored_acknowledgements import (
    AcknowledgementBatch,
    UnstoredAcknowledgements,
    by_segment,
    offsets_text,
)
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import SegmentId
from headgate.protocol.request_fields import MAX_BATCH_ACKNOWLEDGEMENTS
from headgate.protocol.requests import Acknowledgement, NegativeAcknowledgement, ParkedRecord, ResumedKey

HELD = ((0, 1), (0, 2), (5, 3))

steps = st.lists(
    st.one_of(
        st.tuples(st.just("acknowledge"), st.sampled_from(HELD), st.integers(0, 12), st.integers(1, 4)),
        st.tuples(st.sampled_from(["park", "resume", "checkpoint"]), st.sampled_from(HELD)),
        st.tuples(st.just("send")),
        st.tuples(st.just("reply"), st.sets(st.integers(0, 6))),
        st.tuples(st.just("fail")),
        st.tuples(st.just("retry")),
    ),
    max_size=30,
)


class Leader:
    """Counts what it stores, and what the program acknowledged."""

    def __init__(self, kind: SubscriptionType) -> None:
        self.kind = kind
        self.stored: dict[tuple[int, int], set[int]] = {key: set() for key in HELD}
        self.acknowledged: dict[tuple[int, int], set[int]] = {key: set() for key in HELD}
        self.wanted: dict[str, dict[Any, Any]] = {"parked": {}, "resumed": {}, "checkpoints": {}}
        """What besides was acknowledged."""
        self.got: dict[str, dict[Any, Any]] = {"parked": {}, "resumed": {}, "checkpoints": {}}

    def covered(self, first: int, end: int) -> range:
        return range(0 if self.kind == SubscriptionType.STREAM else first, end)

    def say(self, unstored: UnstoredAcknowledgements, what: str, key: tuple[int, int], number: int) -> None:
        """Park a record behind those that are acknowledged, resume up to a number, or set a checkpoint."""
        if what == "park":
            offset = max(self.acknowledged[key], default=-1) + 1
            unstored.add_parked(ParkedRecord(*key, offset, b"k"))
            self.wanted["parked"][*key, offset] = b"k"
        elif what == "resume":
            unstored.add_resumed(ResumedKey(*key, b"k", number))
            self.wanted["resumed"][key] = number
        elif key[0] == 5:  # An external segment has one holding.
            unstored.add_checkpoint(key, str(number))
            self.wanted["checkpoints"][5] = str(number)

    def store(self, each: Acknowledgement, batch: AcknowledgementBatch) -> None:
        """Store an acknowledgement, with what the same holding says besides."""
        key = each.segment, each.generation
        self.stored[key].update(self.covered(each.first_offset, each.end_offset))
        mine = [record for record in batch.parked if (record.segment, record.generation) == key]
        self.got["parked"] |= {(*key, record.offset): record.key for record in mine if record.offset < each.end_offset}
        for said in batch.resumed:
            if (said.segment, said.generation) == key:
                self.got["resumed"][key] = said.number
        if each.segment in batch.checkpoints:
            self.got["checkpoints"][each.segment] = batch.checkpoints[each.segment]
        for *holding, offset in self.wanted["parked"] if self.kind == SubscriptionType.STREAM else ():
            assert offset not in self.stored[tuple(holding)] or (*holding, offset) in self.got["parked"], "is skipped"


def drain(unstored: UnstoredAcknowledgements, leader: Leader) -> None:
    while (batch := unstored.next_batch()) is not None:
        for each in batch.acknowledgements:
            leader.store(each, batch)
        unstored.replied({})


def play(kind: SubscriptionType, story: list[tuple]) -> None:  # type: ignore[type-arg]
    unstored, leader, batch = UnstoredAcknowledgements(kind), Leader(kind), None
    for key in HELD:
        unstored.begin(key, 0)
    for number, step in enumerate(story):
        match step:
            case (what, key) if kind == SubscriptionType.STREAM and what != "reply":
                leader.say(unstored, what, key, number)
            case ("acknowledge", key, first, count):
                unstored.add(key, first, first + count)
                leader.acknowledged[key].update(leader.covered(first, first + count))
            case ("send",) if batch is None:
                batch = unstored.next_batch()
            case ("reply", rejected) if batch is not None:
                for index, each in enumerate(batch.acknowledgements):
                    if index not in rejected:
                        leader.store(each, batch)
                unstored.replied(dict.fromkeys(rejected, "no"))
                batch = None
            case ("fail",) if batch is not None:
                unstored.failed()
                batch = None
            case ("retry",):
                unstored.retry()
        now = unstored.unstored()
        for key in HELD:
            missing = leader.acknowledged[key] - leader.stored[key]
            kept = {offset for part in now.get(key, ()) for offset in range(*part)}
            assert missing <= kept, "what is not stored is kept"
            said = leader.wanted["resumed"].get(key), leader.wanted["checkpoints"].get(key[0])
            stored = leader.got["resumed"].get(key), leader.got["checkpoints"].get(key[0])
            assert key in now or said == stored
            assert kept <= leader.acknowledged[key]
    if batch is not None:
        unstored.failed()
    unstored.retry()
    drain(unstored, leader)
    assert (leader.got["resumed"], leader.got["checkpoints"]) == (
        leader.wanted["resumed"],
        leader.wanted["checkpoints"],
    )
    for key in HELD if kind == SubscriptionType.STREAM else ():  # what was parked is acknowledged at last
        unstored.add(key, 0, 20)
        leader.acknowledged[key].update(range(20))
    drain(unstored, leader)
    assert leader.stored == leader.acknowledged
    assert leader.got == leader.wanted
    assert not unstored.unstored()


@given(story=steps)
def test_a_stream_stores_in_the_end_what_was_acknowledged_whatever_was_refused_in_between(story: list[tuple]) -> None:  # type: ignore[type-arg]
    play(SubscriptionType.STREAM, story)


@given(story=steps)
def test_a_queue_stores_in_the_end_what_was_acknowledged_whatever_was_refused_in_between(story: list[tuple]) -> None:  # type: ignore[type-arg]
    play(SubscriptionType.QUEUE, story)


def test_every_short_story_of_one_segment_ends_so() -> None:
    said = [(what, HELD[2]) for what in ("park", "resume", "checkpoint")]
    replies = [("send",), ("reply", set()), ("reply", {0}), ("fail",), ("retry",)]
    for story in product([*said, *replies, ("acknowledge", HELD[2], 0, 3)], repeat=4):
        play(SubscriptionType.STREAM, list(story))


def test_what_a_program_said_of_a_record_at_last_is_sent() -> None:
    unstored = UnstoredAcknowledgements(SubscriptionType.QUEUE)
    unstored.begin((0, 1), 0)
    unstored.add_single(3, NegativeAcknowledgement(0, 1, 3, 0, 1))
    unstored.next_batch()
    unstored.failed()
    unstored.add_single(3, Acknowledgement(0, 1, 3, 4, 2))
    unstored.retry()

    for _ in range(2):
        assert AcknowledgementBatch([Acknowledgement(0, 1, 3, 4, 2)]) == unstored.next_batch()
        unstored.failed()
        unstored.retry()


def test_more_parked_records_or_resumed_keys_than_a_batch_takes_are_acknowledged_one_batch_after_the_other() -> None:
    unstored = UnstoredAcknowledgements(SubscriptionType.STREAM)
    unstored.begin((0, 1), 0)
    for offset in range(MAX_BATCH_ACKNOWLEDGEMENTS + 1):
        unstored.add_parked(ParkedRecord(0, 1, offset, b"k"))
        unstored.add_resumed(ResumedKey(0, 1, b"%d" % offset, 1))
    unstored.add((0, 1), 0, MAX_BATCH_ACKNOWLEDGEMENTS + 1)
    sent = []
    while (batch := unstored.next_batch()) is not None:
        sent.append((batch.acknowledgements[0].end_offset, len(batch.parked), len(batch.resumed)))
        unstored.replied({})

    assert [(1000, 1000, 1000), (1001, 1, 1)] == sent


def test_a_batch_has_a_limit_and_the_rest_follows() -> None:
    unstored = UnstoredAcknowledgements(SubscriptionType.QUEUE)
    unstored.begin((0, 1), 0)
    for offset in range(MAX_BATCH_ACKNOWLEDGEMENTS + 1):
        unstored.add((0, 1), 2 * offset, 2 * offset + 1)
    sizes = []
    while (batch := unstored.next_batch()) is not None:
        sizes.append(len(batch.acknowledgements))
        unstored.replied({})

    assert [MAX_BATCH_ACKNOWLEDGEMENTS, 1] == sizes


def test_what_was_in_flight_when_its_segment_moved_counts_as_its_reply_says() -> None:
    unstored = UnstoredAcknowledgements(SubscriptionType.STREAM)
    for key in HELD[1:]:
        unstored.begin(key, 0)
        unstored.add(key, 0, 5)
    unstored.next_batch()
    for key in HELD[1:]:
        unstored.end(key)
    unstored.replied({0: "held by another consumer"})

    assert (5, 5) == (unstored.stored, unstored.late)


def test_only_what_was_there_before_is_still_unstored() -> None:
    unstored = UnstoredAcknowledgements(SubscriptionType.STREAM)
    unstored.begin((0, 1), 3)
    unstored.add((0, 1), 0, 5)
    before = unstored.unstored()
    unstored.next_batch()
    unstored.add((0, 1), 0, 9)
    assert {SegmentId(0): ((3, 5),)} == by_segment(unstored.still_unstored(before))
    unstored.replied({})

    assert {} == unstored.still_unstored(before)
    assert {SegmentId(0): ((5, 9),)} == by_segment(unstored.unstored())


def test_a_text_names_ten_segments_and_ten_ranges_of_one() -> None:
    many = {SegmentId(segment): ((0, 1),) for segment in range(12)}
    gaps = tuple((2 * offset, 2 * offset + 1) for offset in range(12))

    assert "segment 9: offsets 0; … and 2 more" in offsets_text(many)
    assert "segment 3: offsets 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, … and 2 more" == offsets_text({SegmentId(3): gaps})
