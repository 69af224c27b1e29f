"""Restoring from snapshots and a tail, and telling a trim from a hole."""

from __future__ import annotations

import pytest

from controller.snapshots.job import RETAINED_SNAPSHOTS, take_snapshot
from controller.snapshots.restore import catch_up, load_newest_snapshot
from controller.state.shard_state import ShardState
from headgate.errors import ChunkError
from headgate.ledger.chunk import ChunkBuilder
from headgate.ledger.ledger import Ledger, chunk_folder, chunk_name, snapshot_path
from headgate.model import entries as e
from tests.support.object_store import FakeStore
from tests.support.whole_state import everything


class Kept:
    """A ledger of small chunks in memory: reigns at 1 and 6, and a command in every other chunk."""

    def __init__(self, chunks: int = 0) -> None:
        self.store = FakeStore()
        self.ledger = Ledger(self.store, 0)
        self.state = ShardState(0)
        self.complaints = 0
        for _ in range(chunks):
            self.grow()

    def grow(self, *entries: e.AnyEntry) -> None:
        number = self.state.chunk + 1
        if not entries and number in {1, 6}:
            entries = (e.TermStarted(leader_epoch=number, instance="a"),)
        builder = ChunkBuilder()
        for entry in entries or (e.ProducerOpened(producer_id=number, producer_epoch=0, token=str(number)),):
            builder.add(entry)
        self.state.apply_all(builder.entries, chunk=number, at_ms=number)
        data = builder.encode(shard=0, number=number, leader_epoch=1, at_ms=number)
        self.store.objects[f"{chunk_folder(0)}/{chunk_name(number)}"] = data

    def trim(self, below: int) -> None:
        """Write the entry and delete, as a leader does."""
        self.grow(e.LedgerTrimmed(below=below))
        for number in range(1, below):
            if number not in self.state.term_start_chunks:
                self.lose(number)

    def lose(self, number: int) -> None:
        del self.store.objects[f"{chunk_folder(0)}/{chunk_name(number)}"]

    def complain(self, _: int) -> None:
        self.complaints += 1

    async def snapshot(self) -> int:
        number = await take_snapshot(self.ledger, least_chunks=1, now_ms=0)
        assert number == self.state.chunk
        return number

    async def restored(self) -> tuple[ShardState, int]:
        return await catch_up(self.ledger, ShardState(0), self.complain)


async def test_a_restore_reads_the_newest_snapshot_and_the_chunks_after_it() -> None:
    kept = Kept(10)
    await kept.snapshot()
    for _ in range(3):
        kept.grow()
    state, read = await kept.restored()

    assert everything(kept.state) == everything(state)
    assert 3 == read
    assert 0 == kept.complaints


@pytest.mark.parametrize("broken", [b"", b"half", None], ids=["empty", "foreign", "cut short"])
async def test_a_damaged_snapshot_is_told_and_the_one_before_it_serves(broken: bytes | None) -> None:
    kept = Kept(4)
    await kept.snapshot()
    kept.grow()
    path = snapshot_path(0, await kept.snapshot())
    kept.store.objects[path] = kept.store.objects[path][:-20] if broken is None else broken
    state, read = await kept.restored()

    assert everything(kept.state) == everything(state)
    assert (1, 1) == (read, kept.complaints)


async def test_without_any_usable_snapshot_the_whole_ledger_serves() -> None:
    kept = Kept(4)
    kept.store.objects[snapshot_path(0, await kept.snapshot())] = b""
    state, read = await kept.restored()

    assert everything(kept.state) == everything(state)
    assert (4, 1) == (read, kept.complaints)


async def test_a_trimmed_ledger_without_a_usable_snapshot_is_refused_with_the_reason() -> None:
    kept = Kept(8)
    number = await kept.snapshot()
    kept.trim(8)
    kept.store.objects[snapshot_path(0, number)] = b""

    with pytest.raises(ChunkError, match=r"chunk 7 is missing, and no snapshot can be used .*snapshot 8 .*damaged"):
        await kept.restored()


async def test_a_snapshot_that_is_ahead_of_its_ledger_is_refused() -> None:
    """The ledger has lost its end: to go on would hand out numbers and offsets a second time."""
    kept = Kept(8)
    await kept.snapshot()
    kept.lose(8)

    with pytest.raises(ChunkError, match=r"000000000008\.snapshot is ahead of ledger/shard=0000: chunk 8 is missing"):
        await load_newest_snapshot(kept.ledger, kept.complain)


async def test_a_trimmed_ledger_restores_to_what_the_whole_one_was() -> None:
    kept = Kept(9)
    await kept.snapshot()
    kept.trim(8)
    kept.grow()
    state, read = await kept.restored()

    assert everything(kept.state) == everything(state)
    assert (2, 8) == (read, state.trimmed_below)
    assert [1, 6, 8, 9, 10, 11] == await kept.ledger.numbers()
    assert 11 == await kept.ledger.newest()


async def test_deleting_that_was_cut_short_hinders_no_restore() -> None:
    """The entry is written first, and whoever comes next deletes the rest."""
    kept = Kept(9)
    await kept.snapshot()
    kept.grow(e.LedgerTrimmed(below=8))
    kept.lose(2)
    kept.lose(3)
    state, _ = await kept.restored()

    assert everything(kept.state) == everything(state)


@pytest.mark.parametrize("lost", [8, 10], ids=["below the snapshot", "above it"])
async def test_a_chunk_that_was_not_trimmed_and_is_missing_is_a_hole(lost: int) -> None:
    """Also one that nobody has to read for the state: its records are lost to consumers."""
    kept = Kept(9)
    await kept.snapshot()
    kept.trim(7)
    kept.grow()
    kept.lose(lost)

    with pytest.raises(ChunkError, match=f"chunk {lost} is missing; the ledger has a gap"):
        await kept.restored()


async def test_a_follower_whose_next_chunk_was_trimmed_goes_on_from_a_snapshot() -> None:
    kept = Kept(4)
    behind, _ = await kept.restored()
    for _ in range(6):
        kept.grow()
    await kept.snapshot()
    kept.trim(9)
    state, read = await catch_up(kept.ledger, behind, kept.complain)

    assert everything(kept.state) == everything(state)
    assert 1 == read


async def test_a_snapshot_is_written_once_it_is_due_and_the_newest_few_are_kept() -> None:
    kept = Kept(3)
    assert await take_snapshot(kept.ledger, least_chunks=4, now_ms=0) is None
    numbers = []
    for _ in range(RETAINED_SNAPSHOTS + 2):
        kept.grow()
        numbers.append(await kept.snapshot())
    assert await take_snapshot(kept.ledger, least_chunks=1, now_ms=0) is None

    assert numbers[-RETAINED_SNAPSHOTS:] == await kept.ledger.snapshots()


async def test_two_who_write_the_same_snapshot_at_once_are_both_content() -> None:
    kept = Kept(3)
    path = snapshot_path(0, await kept.snapshot())
    first = kept.store.objects[path]
    before = await kept.ledger.snapshots()

    class Blind(FakeStore):
        async def names(self, prefix: str, after: str = "") -> list[str]:
            found = await super().names(prefix, after)
            return [] if prefix.startswith("snapshots") and not self.calls["create"] else found

    late = Ledger(Blind(objects=kept.store.objects), 0)
    assert 3 == await take_snapshot(late, least_chunks=1, now_ms=99)
    assert (before, first) == (await kept.ledger.snapshots(), kept.store.objects[path])


async def test_the_newest_number_is_known_of_a_trimmed_ledger_and_refused_of_one_with_a_hole() -> None:
    kept = Kept(9)
    kept.lose(5)
    with pytest.raises(ChunkError, match="chunk 5 is missing, and no snapshot covers it"):
        await kept.ledger.newest()
    kept.store.objects[snapshot_path(0, 4)] = b""
    with pytest.raises(ChunkError, match="chunk 5 is missing"):
        await kept.ledger.newest()
    kept.store.objects[snapshot_path(0, 5)] = b""

    assert 9 == await kept.ledger.newest()


async def test_a_foreign_object_among_the_chunks_is_refused() -> None:
    kept = Kept(2)
    for name in ("000000000002.parquet.bak", "7.parquet", "readme"):
        kept.store.objects[f"{chunk_folder(0)}/{name}"] = b""
        with pytest.raises(ChunkError, match=f"{name} is a foreign object"):
            await kept.ledger.newest()
        del kept.store.objects[f"{chunk_folder(0)}/{name}"]
