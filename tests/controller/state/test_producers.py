"""Producers as the ledger's entries define them: names stay, anonymous producers and windows expire."""

import gc
import tracemalloc
from collections.abc import Sequence

import pytest

from controller.state.producers import Producers
from controller.state.shard_state import ShardState
from headgate.model import entries as e
from tests.support.whole_state import everything

MAX_EARLIER_TOKENS = 8
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
    return e.RecordsStored(
        topic_id=1,
        count=1,
        placements=[e.Placement(0, 0, 65535, offset, 1)],
        size_bytes=10,
        producer_id=producer_id,
        producer_epoch=epoch,
        sequence=sequence,
        source_position=position,
    )


def test_opening_an_identity_restarts_its_sequence_and_keeps_its_source_position() -> None:
    producers = producers_after(
        [opened(2, name="loader")], [stored(2, 0, position=b"7")], [opened(2, epoch=1, name="loader")]
    )

    assert (1, 0, b"7") == (producers[2].producer_epoch, producers[2].next_sequence, producers[2].source_position)
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
    assert b"7" == producers[9].source_position


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


def test_opening_by_id_alone_keeps_the_name() -> None:
    assert "loader" == producers_after([opened(2, name="loader")], [opened(2, epoch=1)])[2].name


def test_an_expired_anonymous_producer_leaves_nothing() -> None:
    assert everything(producers_after()) == everything(
        producers_after([opened(2), stored(2, 0)], [e.ProducersExpired(producer_ids=[2, 77])])
    )


def test_an_expired_window_leaves_everything_else() -> None:
    """The next run continues at the source position, and a repeated batch is still a duplicate."""
    used = [opened(2, name="loader"), stored(2, 0, position=b"7")]
    expired = [e.ProducersExpired(producer_ids=[], windows=[2])]
    producers = producers_after(used, expired)

    assert (0, "loader", 0, 1, b"7") == (
        len(producers[2].finished),
        producers[2].name,
        producers[2].producer_epoch,
        producers[2].next_sequence,
        producers[2].source_position,
    )
    assert ([], [2]) == (list(producers.with_window), list(producers.without_window))
    assert [2] == list(producers_after(used, expired, [stored(2, 1, offset=1)]).with_window)


def test_a_deleted_producer_leaves_nothing() -> None:
    """Its name can be opened again, and then has no history."""
    used = [opened(2, name="loader"), stored(2, 0, position=b"7"), opened(2, epoch=1, name="loader")]
    deleted = [e.ProducerDeleted(producer_id=2, token="gone")]

    assert everything(producers_after()) == everything(producers_after(used, deleted))
    again = producers_after(used, deleted, [opened(5, name="loader")]).of_name("loader")
    assert again is not None
    assert (None, True) == (again.source_position, again.new)


def test_tokens_of_earlier_open_requests_are_replayed_from_the_ledger() -> None:
    """Therefore a successor recognizes a delayed copy too. Older ones are forgotten."""
    tokens = [f"t{n}" for n in range(MAX_EARLIER_TOKENS + 3)]
    producers = producers_after(*([opened(2, epoch=n, token=token)] for n, token in enumerate(tokens)))

    assert tokens[-1] == producers[2].token
    assert tuple(tokens[-1 - MAX_EARLIER_TOKENS : -1]) == producers[2].earlier_tokens
    assert tokens[-1 - MAX_EARLIER_TOKENS :] == [
        token for token in tokens if producers.opened_by(token) is producers[2]
    ]


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
