"""What `Schedule` promises, over random arrivals, outcomes, revocations and losses of segments."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.client.consumed_record import ConsumedRecord
from headgate.client.processing.schedule import BatchPolicy, LastAction, LookAhead, RetryPolicy, Schedule
from headgate.errors import ConfigError
from headgate.model.identifiers import Generation, Offset, SegmentId

SEGMENTS = 3


def record(
    offset: int, key: bytes = b"k", *, segment: int = 0, generation: int = 1, value: bytes = b"", parked_number: int = 0
) -> ConsumedRecord:
    at = SegmentId(segment), Offset(offset)
    return ConsumedRecord("orders", *at, key, value, 0, Generation(generation), parked_number=parked_number)


def schedule(
    concurrency: int = 4, *, max_records: int = 1, wait: float = 0.0, ahead: int = 100, cumulative: bool = True
):
    batch = BatchPolicy(max_records=max_records, max_wait_seconds=wait)
    return Schedule(concurrency, batch, LookAhead(max_records=ahead), cumulative=cumulative)


class RandomRuns(RuleBasedStateMachine):
    """A model that knows which records arrived and what became of each."""

    @initialize(concurrency=st.integers(1, 4), max_records=st.integers(1, 3), cumulative=st.booleans())
    def begin(self, concurrency: int, max_records: int, cumulative: bool) -> None:
        self.concurrency, self.cumulative = concurrency, cumulative
        self.schedule = schedule(concurrency, max_records=max_records, ahead=12, cumulative=cumulative)
        self.running, self.pausing = [], []
        self.begun, self.handled, self.given_back, self.stuck = [], set(), set(), set()
        self.marks, self.generations = {}, defaultdict(lambda: 1)
        self.arrived = defaultdict(list)
        self.paused, self.revoked, self.ended = set(), set(), set()

    def held_key(self, segment: int) -> tuple[int, int]:
        return segment, self.generations[segment]

    @rule(segment=st.integers(0, SEGMENTS - 1), key=st.sampled_from([b"a", b"b", b"c"]))
    def arrive(self, segment: int, key: bytes) -> None:
        held = self.held_key(segment)
        if held in self.paused | self.revoked:
            return
        new = record(len(self.arrived[held]), key, segment=segment, generation=held[1])
        self.arrived[held].append(new)
        if (full := self.schedule.add(new, 0.0, SEGMENTS)) is not None:
            self.paused.add(full)
        self.start()

    def keys(self, batches) -> set[bytes]:
        return {work.record.key for batch in batches for work in batch.works}

    def start(self) -> None:
        while (batch := self.schedule.start(0.0)) is not None:
            waiting = {
                each.key for other in self.running + self.pausing if other is not batch for each in other.records
            }
            assert not waiting & {each.key for each in batch.records}, "a key is in one batch at a time"
            if not batch.failures:
                self.begun += batch.records
            self.running.append(batch)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def succeed(self, data) -> None:
        batch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.count(self.schedule.finished(batch), batch)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data) -> None:
        batch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.schedule.failed(batch)
        self.pausing.append(batch)
        self.start()

    @precondition(lambda self: self.pausing)
    @rule(data=st.data(), skips=st.booleans())
    def retry_or_skip(self, data, skips: bool) -> None:
        batch = self.pausing.pop(data.draw(st.integers(0, len(self.pausing) - 1)))
        alive = [each for work in batch.works if (each := work.record) and self.is_held(each)]
        assert alive == batch.records, "nothing of a former holding is handled again"
        if skips or not alive:
            self.count(self.schedule.give_up(batch), batch)
        else:
            self.schedule.retry(batch)
            self.start()

    def is_held(self, each: ConsumedRecord) -> bool:
        return (each.segment, each.generation) not in self.ended

    def count(self, acknowledged: list[ConsumedRecord], batch) -> None:
        for work in batch.works:
            assert work.record not in self.handled, "a record is handled once"
            self.handled.add(work.record)
        for each in acknowledged:
            held = each.segment, each.generation
            assert held not in self.ended, "what a former holder acknowledges has no effect"
            if self.cumulative:
                assert each.offset >= self.marks.get(held, 0), "marks only rise"
                self.marks[held] = each.offset + 1
                assert set(self.arrived[held][: each.offset + 1]) <= self.handled, "nothing unhandled is acknowledged"
        if not self.cumulative:
            assert batch.records == acknowledged
        self.paused -= set(self.schedule.take_resumed())
        self.start()

    @rule(segment=st.integers(0, SEGMENTS - 1))
    def revoke(self, segment: int) -> None:
        held = self.held_key(segment)
        given_back = set(self.schedule.revoke(held))
        assert not given_back & set(self.begun)
        self.given_back |= given_back
        self.revoked.add(held)
        kept = [each for each in self.arrived[held] if each not in self.given_back]
        if self.cumulative:
            assert kept == self.arrived[held][: len(kept)], "what is given back is the end of what arrived"
            assert not kept or kept[-1] in self.begun, "it is handled only up to the last record that was begun"

    @rule(segment=st.integers(0, SEGMENTS - 1))
    def lose(self, segment: int) -> None:
        held = self.held_key(segment)
        self.schedule.end(held)
        self.ended.add(held)
        self.generations[segment] += 1

    @invariant()
    def keys_are_in_order_and_calls_are_bounded(self) -> None:
        assert len(self.running) <= self.concurrency
        orders = defaultdict(list)
        for each in self.begun:
            orders[each.key, each.segment, each.generation].append(each.offset)
        assert all(offsets == sorted(set(offsets)) for offsets in orders.values())

    @invariant()
    def nothing_that_could_start_waits(self) -> None:
        assert self.schedule.start(0.0) is None
        if len(self.running) < self.concurrency:
            busy = self.keys(self.running + self.pausing)
            taken = set(self.begun) | self.given_back
            for held, records in self.arrived.items():
                for each in records:
                    assert each in taken or held in self.ended or each.key in busy, f"{each} could start"

    @invariant()
    def a_segment_is_paused_only_at_its_share(self) -> None:
        for held in self.paused - self.ended - self.revoked:
            unpassed = [each for each in self.arrived[held] if each.offset >= self.marks.get(held, 0)]
            ahead = unpassed if self.cumulative else [each for each in unpassed if each not in self.handled]
            assert len(ahead) * 2 >= 12 // SEGMENTS
            assert len(ahead) <= 12 // SEGMENTS

    def teardown(self) -> None:
        """Whatever happened, everything ends once handlers return."""
        if not hasattr(self, "schedule"):
            return
        while self.running or self.pausing:
            for batch in list(self.pausing):
                self.pausing.remove(batch)
                self.schedule.retry(batch)
            self.start()
            for batch in list(self.running):
                self.running.remove(batch)
                self.count(self.schedule.finished(batch), batch)
        assert 0 == self.schedule.unfinished
        assert not any(self.schedule.unfinished_of(held) for held in self.revoked)


TestRandomRuns = RandomRuns.TestCase


def test_one_stuck_key_holds_no_other_work_up_to_the_look_ahead():
    runs = schedule(2, ahead=1000)
    runs.add(record(0, b"stuck"), 0.0, 1)
    stuck = runs.start(0.0)
    for offset in range(1, 999):
        assert runs.add(record(offset, b"other"), 0.0, 1) is None
        assert [] == runs.finished(runs.start(0.0))
    assert (0, 1) == runs.add(record(999, b"other"), 0.0, 1)

    assert [998] == [each.offset for each in runs.finished(stuck)]
    assert [(0, 1)] == runs.take_resumed()


@pytest.mark.parametrize("held", [1, 4])
def test_bytes_have_a_limit_of_their_own_and_every_segment_its_share(held: int):
    runs = Schedule(1, BatchPolicy(max_records=1), LookAhead(max_bytes=4000), cumulative=False)
    added = 0
    while runs.add(record(added, b"%d" % added, value=bytes(99 - len(b"%d" % added) + 1)), 0.0, held) is None:
        added += 1

    assert 4000 // held == (added + 1) * 100
    assert runs.add(record(0, b"x", segment=1), 0.0, held) is None, "another segment continues"


def test_a_batch_waits_for_records_of_keys_that_are_free_and_no_longer_than_it_may():
    runs = schedule(2, max_records=3, wait=5.0)
    for offset in range(2):
        runs.add(record(offset, b"%d" % offset), offset, 1)
    assert (None, 5.0) == (runs.start(4.9), runs.starts_at)
    first = runs.start(5.0)
    assert [0, 1] == [each.offset for each in first.records]
    for offset, key in ((2, b"0"), (3, b"1"), (4, b"new")):
        runs.add(record(offset, key), 6.0, 1)
    assert (None, 11.0) == (runs.start(6.0), runs.starts_at)
    runs.finished(first)
    assert [2, 3, 4] == [each.offset for each in runs.start(7.0).records]
    assert runs.starts_at is None

    runs.add(record(5, b"late"), 8.0, 1)
    runs.hurried = True
    assert [5] == [each.offset for each in runs.start(8.0).records]


def test_a_batch_that_is_abandoned_leaves_its_keys_and_the_low_water_mark_where_they_are():
    runs = schedule(2)
    for offset, key in enumerate([b"a", b"b", b"a"]):
        runs.add(record(offset, key), 0.0, 1)
    bad, good = runs.start(0.0), runs.start(0.0)
    runs.failed(bad)

    assert 2 == runs.abandon(bad)
    assert [] == runs.finished(good)
    assert (None, 0) == (runs.start(0.0), runs.unfinished)


def test_resumed_records_are_given_back_whatever_their_offsets_in_the_dead_letter_topic():
    runs, resumed = schedule(2), lambda offset, number: record(offset, b"p", parked_number=number)
    ordinary = [record(3), record(4), record(5)]
    # The dead-letter topic was split: the third one has a low offset.
    for each in (resumed(900, 1), resumed(901, 2), resumed(0, 3), *ordinary):
        runs.add(each, 0.0, 1)
    begun = [runs.start(0.0), runs.start(0.0)]
    given_back = runs.revoke((0, 1))

    assert [(0, b"p", 3), (4, b"k", 0), (5, b"k", 0), (901, b"p", 2)] == sorted(
        (each.offset, each.key, each.parked_number) for each in given_back
    )
    assert [[resumed(900, 1)], [ordinary[0]]] == list(map(runs.finished, begun))
    assert not runs.unfinished_of((0, 1))


@given(failures=st.integers(1, 12), draw=st.floats(0, 1))
def test_a_policy_retries_the_named_exceptions_with_pauses_that_double(failures: int, draw: float):
    policy = RetryPolicy(
        attempts=10, first_pause_seconds=1, longest_pause_seconds=8, exceptions=(OSError,), then="skip"
    )

    assert LastAction.SKIP == policy.after(failures, ValueError(), draw)
    pause = policy.after(failures, TimeoutError(), draw)
    if failures >= 10:
        assert LastAction.SKIP == pause
    else:
        bound = min(8, 2 ** (failures - 1))
        assert bound / 2 <= pause <= bound


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RetryPolicy(attempts=0), "attempts=0 has to be 1 or more"),
        (lambda: RetryPolicy(first_pause_seconds=2, longest_pause_seconds=1), "longest_pause_seconds=1: use 2 to"),
        (lambda: RetryPolicy(then="ignore"), "then='ignore': use"),
        (lambda: BatchPolicy(max_records=0), "max_records=0 has to be 1 or more"),
        (lambda: BatchPolicy(max_wait_seconds=float("nan")), "max_wait_seconds=nan"),
        (lambda: LookAhead(max_bytes=0), "max_bytes=0 has to be 1 or more"),
    ],
)
def test_an_invalid_policy_is_refused_and_says_what_is_valid(make, text: str):
    with pytest.raises(ConfigError, match=text):
        make()
