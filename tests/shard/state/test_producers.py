"""Producers as the ledger's entries define them: names stay, anonymous producers and windows expire."""

import gc
import sys
import tracemalloc
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from headgate.model import entries as e
from shard.state.producers import (
    MAX_DELETED_NAMES,
    DeletedName,
    FinishedBatch,
    FinishedBatches,
    Producers,
    ProducerState,
)
from shard.state.shard_state import ShardState
from tests.support.samples.stored_batches import stored_batch
from tests.support.whole_state import everything

CREATED = e.TopicCreated(topic_id=1, topic="orders", segments=1, token="create")


def producers_after(*chunks: Sequence[e.AnyEntry]) -> Producers:
    state = ShardState(0)
    for number, entries in enumerate(((CREATED,), *chunks), start=1):
        state.apply_all(entries, chunk=number, at_ms=number * 1000)
    return state.producers


def opened(
    producer_id: int, epoch: int = 0, *, token: str | None = None, name: str | None = None, replaced: int | None = None
) -> e.ProducerOpened:
    token = token or f"{producer_id}-{epoch}"
    return e.ProducerOpened(producer_id=producer_id, producer_epoch=epoch, token=token, name=name, replaced_id=replaced)


def stored(producer_id: int, sequence: int, *, offset: int = 0, epoch: int = 0, position: bytes | None = None):
    return stored_batch(sequence, offset, producer_id=producer_id, producer_epoch=epoch, source_position=position)


def test_opening_an_identity_restarts_its_sequence_and_keeps_its_source_position() -> None:
    producers = producers_after(
        [opened(2, name="loader")], [stored(2, 0, position=b"7")], [opened(2, epoch=1, name="loader")]
    )

    assert (1, 0, {1: b"7"}) == (producers[2].producer_epoch, producers[2].next_sequence, producers[2].source_positions)
    assert not producers[2].finished


def test_a_name_that_gets_a_new_id_keeps_its_source_position() -> None:
    """The position of the source must survive a change of id, and the old id must not."""
    producers = producers_after(
        [opened(2, epoch=5, name="loader")],
        [stored(2, 0, epoch=5, position=b"7")],
        [opened(9, name="loader", replaced=2)],
    )

    assert {9} == set(producers)
    assert producers.of_name("loader") is producers[9]
    assert {1: b"7"} == producers[9].source_positions


@pytest.mark.parametrize("use", [stored(2, 0), opened(2, epoch=1)], ids=["a batch", "opening again"])
def test_anonymous_producers_are_ordered_by_use(use: e.AnyEntry) -> None:
    """The least recently used producer expires first."""
    assert [3, 2] == list(producers_after([opened(2), opened(3)], [use]).anonymous)


def test_named_producers_with_a_window_are_ordered_by_use() -> None:
    names = [opened(2, name="a"), opened(3, name="b")]
    batches = [stored(2, 0), stored(3, 0, offset=1), stored(2, 1, offset=2)]

    assert [3, 2] == list(producers_after(names, batches).with_window)


def test_a_batch_of_a_higher_epoch_restarts_the_sequence() -> None:
    """Batches of the earlier epoch take no space in its window."""
    producers = producers_after([opened(2)], [stored(2, 0), stored(2, 1, offset=1)], [stored(2, 0, offset=2, epoch=1)])

    assert [(0, 4)] == [(batch.sequence, batch.chunk) for batch in producers[2].finished]
    assert (1, 1) == (producers[2].producer_epoch, producers[2].next_sequence)


def test_opening_by_id_alone_keeps_the_name_and_its_incarnation() -> None:
    """An older program of the name stays shut out."""
    named = msgspec.structs.replace(opened(2, name="loader"), incarnation=7)
    producer = producers_after([named], [opened(2, epoch=1)])[2]
    assert ("loader", 7) == (producer.name, producer.incarnation)


def test_an_expired_anonymous_producer_leaves_nothing() -> None:
    assert everything(producers_after()) == everything(
        producers_after([opened(2), stored(2, 0)], [e.ProducersExpired(producer_ids=[2, 77])])
    )


def test_an_expired_window_leaves_everything_else() -> None:
    """The next run continues at the source position, and a repeated batch is still a duplicate."""
    used = [opened(2, name="loader"), stored(2, 0, position=b"7")]
    expired = [e.ProducersExpired(producer_ids=[], windows=[2])]
    producers = producers_after(used, expired)

    left = producers[2]
    found = len(left.finished), left.name, left.producer_epoch, left.next_sequence, left.source_positions
    assert (0, "loader", 0, 1, {1: b"7"}) == found
    assert ([], [2]) == (list(producers.with_window), list(producers.without_window))
    assert [2] == list(producers_after(used, expired, [stored(2, 1, offset=1)]).with_window)


def test_a_deleted_producer_leaves_only_its_name_for_a_while() -> None:
    """Its name can be opened again, and then has no history."""
    used = [opened(2, name="loader"), stored(2, 0, position=b"7"), opened(2, epoch=1, name="loader")]
    deleted = [e.ProducerDeleted(producer_id=2, token="gone")]

    left = producers_after(used, deleted)
    assert [DeletedName("loader", 0, 3000)] == left.deleted
    left.deleted = []
    assert everything(producers_after()) == everything(left)
    again = producers_after(used, deleted, [opened(5, name="loader")]).of_name("loader")
    assert ({}, True) == (again.source_positions, again.new)


def test_the_memory_of_deleted_names_is_bounded() -> None:
    """By time, and by number: the latest ones stay."""
    minute, number = 60_000, MAX_DELETED_NAMES
    state = ShardState(0)
    state.apply_all([CREATED], chunk=1, at_ms=0)
    state.producers.deleted = [DeletedName(f"n{each % 5000}", each, minute) for each in range(number)]
    lives = [opened(number, name=f"n{number}"), e.ProducerDeleted(producer_id=number, token=str(number))]
    state.apply_all(lives, chunk=2, at_ms=minute)
    assert (MAX_DELETED_NAMES, "n1") == (len(state.producers.deleted), state.producers.deleted[0].name)
    assert [5005, -1] == [state.producers.deleted_incarnation("n5", minutes * minute) for minutes in (0, 1)]
    lives = [opened(1, name="last"), e.ProducerDeleted(producer_id=1, token="last")]
    state.apply_all(lives, chunk=3, at_ms=11 * minute)

    assert [DeletedName("last", 0, 11 * minute)] == state.producers.deleted


def test_named_producers_are_listed_from_a_name_on() -> None:
    producers = producers_after([opened(n, name=name) for n, name in enumerate("dacb", start=2)])

    after = {name: "".join(each.name or "" for each in producers.named_after(name)) for name in (None, "b", "bb", "d")}

    assert {None: "abcd", "b": "cd", "bb": "cd", "d": ""} == after, "bb: it was deleted between two pages"


def test_an_identity_without_batches_takes_little_memory_and_is_left_out_by_the_garbage_collector() -> None:
    """A daemon keeps hundreds of thousands. Those that have sent nothing yet are many after a start of all clients."""
    count = 2000
    producers_after([opened(1)])  # Imports and caches.
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    known = producers_after([opened(number) for number in range(count)])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (after - before) / count < 800
    assert not any(gc.is_tracked(each) for each in known.values())


WINDOW = 128  # docs/protocol.md


def batch(sequence: int) -> FinishedBatch:
    return FinishedBatch(sequence, 100 + sequence, 7, b"d" * 16, [e.Placement(1, 0, 65535, 7 * sequence, 2)])


def window(batches: Iterable[FinishedBatch]) -> FinishedBatches:
    found = FinishedBatches()
    for each in batches:
        found.append(each)
    return found


def test_batches_are_returned_unchanged_and_the_oldest_is_dropped():
    finished = window(map(batch, range(WINDOW)))
    assert [finished.has_capacity(durable) for durable in (99, 100)] == [False, True]
    finished.append(FinishedBatch(WINDOW, 900, 7, b"", []))

    assert len(finished) == WINDOW
    assert (finished[0], finished[-2]) == (batch(1), batch(WINDOW - 1))
    assert finished[-1] == FinishedBatch(WINDOW, 900, 7, b"", [])
    assert [finished.has_capacity(durable) for durable in (100, 101)] == [False, True]
    assert [known.sequence for known in finished] == list(range(1, WINDOW + 1))


def test_windows_with_equal_batches_are_equal():
    assert window([batch(0)]) == window([batch(0)])
    assert window([batch(0)]) != window([batch(1)])
    assert window([batch(0)]) != [batch(0)]
    assert repr(window([batch(0)])) == f"FinishedBatches([{batch(0)!r}])"


def test_a_batch_needs_less_than_a_hundred_bytes():
    """100,000 producers with full windows need 1.1 GB."""
    large = FinishedBatch(2**31, 2**31, 2**31, b"d" * 16, [e.Placement(300, 0, 65535, 2**31, 100)])
    finished = window([large])

    assert sys.getsizeof(finished._packed[0]) < 100


def test_a_restored_window_has_the_same_batches():
    finished = window([batch(0), batch(1)])
    restored = FinishedBatches(finished.pack())
    restored.append(batch(2))

    assert [batch(0), batch(1), batch(2)] == list(restored)
    assert window([batch(0), batch(1), batch(2)]) == restored
    assert restored.pack() == window([batch(0), batch(1), batch(2)]).pack()


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
    finished = window([FinishedBatch(0, chunk, 1, b"", [])])
    name, token = f"n{producer_id}", f"t{producer_id}"
    return ProducerState(producer_id, 0, name, token, 1, finished=finished, last_at_ms=used_at, last_chunk=chunk)


def expired(known: Producers, *, max_anonymous: int = 10, durable: int = 1) -> tuple[list[int], list[int]]:
    entry = known.expired(age_ms=lambda at_ms: NOW - at_ms, idle_ms=0, max_anonymous=max_anonymous, durable=durable)
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
