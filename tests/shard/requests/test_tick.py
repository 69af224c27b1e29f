"""How long a leader waits before it checks its deadlines again."""

from headgate.model import entries as e
from shard.requests.tick import expired_producers, tick_pause_seconds
from shard.state.producers import FinishedBatch, FinishedBatches, Producers, ProducerState


def test_a_leader_that_writes_checks_four_times_a_second() -> None:
    assert 0.25 == tick_pause_seconds(60.0, 15.0, idle=False)


def test_an_idle_leader_exceeds_its_shortest_deadline_by_a_tenth_at_most() -> None:
    assert 0.5 == tick_pause_seconds(60.0, 5.0, idle=True)


def test_an_idle_leader_checks_once_a_second_if_no_deadline_needs_more() -> None:
    assert 1.0 == tick_pause_seconds(60.0, 15.0, idle=True)


def test_an_idle_leader_never_checks_more_often_than_one_that_writes() -> None:
    assert 0.25 == tick_pause_seconds(60.0, 0.1, idle=True)


NOW = 1000
IDLE = NOW - 1
"""Used last at this time: idle for too long."""


def producers(*known: ProducerState) -> Producers:
    found = Producers()
    for producer in known:
        found.restore(producer)
    return found


def anonymous(producer_id: int, *, used_at: int = NOW, chunk: int = 1) -> ProducerState:
    return ProducerState(producer_id, 0, None, f"t{producer_id}", last_at_ms=used_at, last_chunk=chunk)


def named(producer_id: int, *, used_at: int = NOW, chunk: int = 1) -> ProducerState:
    finished = FinishedBatches([FinishedBatch(0, chunk, 1, b"", [])])
    name, token = f"n{producer_id}", f"t{producer_id}"
    return ProducerState(producer_id, 0, name, token, 1, finished=finished, last_at_ms=used_at, last_chunk=chunk)


def expired(known: Producers, *, max_anonymous: int = 10, durable: int = 1) -> tuple[list[int], list[int]]:
    entry = expired_producers(
        known, age_ms=lambda at_ms: NOW - at_ms, idle_ms=0, max_anonymous=max_anonymous, durable=durable
    )
    return ([], []) if entry is None else (entry.producer_ids, entry.windows)


def test_an_idle_anonymous_producer_is_removed_and_an_idle_named_one_loses_its_window() -> None:
    known = producers(anonymous(1, used_at=IDLE), named(2, used_at=IDLE), anonymous(3), named(4))

    assert ([1], [2]) == expired(known)


def test_above_the_limit_the_least_recently_used_anonymous_producers_are_removed() -> None:
    """Named producers do not count, and never make space."""
    known = producers(named(1), anonymous(2), anonymous(3), anonymous(4), named(5))

    assert ([2], []) == expired(known, max_anonymous=2)
    assert ([], []) == expired(known, max_anonymous=3)


def test_a_producer_with_a_batch_in_flight_does_not_expire() -> None:
    """Its next batch, or a repetition of this one, needs its history."""
    known = producers(anonymous(1, used_at=IDLE, chunk=2), named(2, used_at=IDLE, chunk=2))

    assert ([], []) == expired(known, max_anonymous=0)
    assert ([1], [2]) == expired(known, durable=2)


def test_a_named_producer_without_a_window_does_not_expire_again() -> None:
    known = producers(named(2, used_at=IDLE))
    known.expire(e.ProducersExpired(producer_ids=[], windows=[2]))

    assert ([], []) == expired(known)


def test_one_entry_is_limited() -> None:
    """Applying it must not stop the daemon for long; the rest follows with the next tick."""
    count = 2001
    known = producers(
        *(
            make(n, used_at=IDLE)
            for make, first in ((anonymous, 0), (named, count))
            for n in range(first, first + count)
        )
    )

    assert [2000] * 2 == [len(each) for each in expired(known)]
