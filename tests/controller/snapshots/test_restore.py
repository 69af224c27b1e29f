"""Restoring from snapshots and the chunks after them; trimmed chunks are distinct from gaps."""

import asyncio
import gc
from unittest.mock import AsyncMock

import pytest

from controller.snapshots.format import encode_snapshot
from controller.snapshots.job import RETAINED_SNAPSHOTS, take_snapshot
from controller.snapshots.restore import OtherHistoryError, apply_new_chunks, catch_up, load_newest_snapshot
from headgate.errors import LedgerError, StoreUnavailableError
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_folder, chunk_path, snapshot_path
from headgate.model import entries as e
from shard.state.shard_state import ShardState
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.object_store import FakeStore
from tests.support.whole_state import everything


async def test_a_restore_reads_the_newest_snapshot_and_the_chunks_after_it() -> None:
    ledger = LedgerInMemory(10)
    await ledger.snapshot()
    for _ in range(3):
        ledger.grow()
    state, read = await ledger.restored()

    assert everything(ledger.state) == everything(state)
    assert 3 == read
    assert 0 == ledger.unusable


@pytest.mark.parametrize("earlier", [True, False], ids=["an earlier one", "the whole ledger"])
@pytest.mark.parametrize("broken", ["empty", "foreign", "truncated", "endless", "deleted"])
async def test_a_damaged_snapshot_is_reported_and_what_is_before_it_is_read(broken: str, earlier: bool) -> None:
    ledger = LedgerInMemory(4)
    if earlier:
        await ledger.snapshot()
    ledger.grow()
    path = snapshot_path(0, await ledger.snapshot())
    whole, store = ledger.store.objects[path], ledger.store
    store.objects[path] = {"empty": b"", "foreign": b"half", "truncated": whole[:-20]}.get(broken, whole)
    store.endless |= {path} if broken == "endless" else set()
    if broken == "deleted":  # After it was listed: newer ones were written.
        ledger.ledger.exists = AsyncMock(side_effect=lambda _: store.objects.pop(path, b"") or True)  # type: ignore[method-assign]
    state, read = await ledger.restored()

    assert everything(ledger.state) == everything(state)
    assert (1 if earlier else 5, 1) == (read, ledger.unusable)


async def test_a_trimmed_ledger_without_a_usable_snapshot_is_rejected_with_the_reason() -> None:
    ledger = LedgerInMemory(8)
    number = await ledger.snapshot()
    ledger.trim(8)
    ledger.store.objects[snapshot_path(0, number)] = b""

    with pytest.raises(
        LedgerError, match=r"chunk 7 is missing, and no snapshot can replace it .*8\.snapshot .*damaged"
    ):
        await ledger.restored()


async def test_a_snapshot_ahead_of_its_ledger_is_rejected() -> None:
    """The ledger has lost its end. Continuing would assign numbers and offsets a second time."""
    ledger = LedgerInMemory(8)
    await ledger.snapshot()
    ledger.lose(8)

    with pytest.raises(LedgerError, match=r"000000000008\.snapshot is ahead of chunks/shard=0000: chunk 8 is missing"):
        await load_newest_snapshot(ledger.ledger, ledger.on_unusable)


@pytest.mark.parametrize("lost", [8, 10], ids=["below the snapshot", "above it"])
async def test_a_missing_chunk_that_was_not_trimmed_is_a_gap(lost: int) -> None:
    """Even if the state does not need it: its records are lost to consumers."""
    ledger = LedgerInMemory(9)
    await ledger.snapshot()
    ledger.trim(7)
    ledger.grow()
    ledger.lose(lost)

    with pytest.raises(LedgerError, match=f"chunk {lost} is missing; the ledger has a gap"):
        await ledger.restored()


async def test_a_listing_that_does_not_show_the_newest_chunks_yet_hides_none_and_is_no_gap() -> None:
    kept = LedgerInMemory(12)
    kept.store.late_listings = 0.5
    for _ in range(20):
        state, _ = await kept.restored()
        assert state.chunk == 12
    assert kept.unusable == 0


async def test_a_chunk_that_is_written_after_it_was_missed_and_before_the_listing_is_no_hole() -> None:
    kept = LedgerInMemory(4)
    state, _ = await kept.restored()
    listed = kept.store.names

    async def names(prefix: str, after: str = "") -> list[str]:
        await asyncio.sleep(1)
        if kept.state.chunk < 6:
            kept.grow()
        return await listed(prefix, after)

    kept.store.names = names  # type: ignore[method-assign]
    assert 6 == (await catch_up(kept.ledger, state, kept.on_unusable, urgent=True))[0].chunk


async def test_a_follower_whose_next_chunk_was_trimmed_continues_from_a_snapshot() -> None:
    ledger = LedgerInMemory(4)
    behind, _ = await ledger.restored()
    for _ in range(6):
        ledger.grow()
    await ledger.snapshot()
    ledger.trim(9)
    state, read = await catch_up(ledger.ledger, behind, ledger.on_unusable)

    assert everything(ledger.state) == everything(state)
    assert 1 == read


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("length", [7, 8, 9, 10, 11, 13])
async def test_a_state_is_discarded_if_the_ledger_was_put_back_under_it(length: int, urgent: bool) -> None:
    """Rule 4. The next term has the epoch of a lost one, and its chunks may be fewer or more than those that were lost."""
    ledger = LedgerInMemory(7)
    backup = dict(ledger.store.objects)
    for epoch in (8, 9):
        ledger.grow(e.TermStarted(leader_epoch=epoch, instance="a", term_id=epoch))
    followed, _ = await ledger.restored()
    assert 9 == followed.chunk
    present = LedgerInMemory(7, FakeStore(objects=backup))
    while present.state.chunk < length:
        present.grow(e.TermStarted(leader_epoch=8, instance="a", term_id=88))

    state, _ = await catch_up(present.ledger, followed, present.on_unusable, urgent=urgent)

    assert everything(present.state) == everything(state)


async def test_a_chunk_of_another_history_is_not_folded() -> None:
    ledger, other = LedgerInMemory(3), LedgerInMemory(2)
    for entries in ((e.TermStarted(leader_epoch=2, instance="b", term_id=77),), ()):
        other.grow(*entries)
    ledger.store.objects[chunk_path(0, 4)] = other.store.objects[chunk_path(0, 4)]
    with pytest.raises(OtherHistoryError, match="chunk 4 does not continue the state after chunk 3"):
        await apply_new_chunks(ledger.ledger, ledger.state)


async def test_a_snapshot_of_another_history_than_the_chunks_is_an_error() -> None:
    ledger = LedgerInMemory(7)
    backup = dict(ledger.store.objects)
    ledger.grow(e.TermStarted(leader_epoch=8, instance="a", term_id=8))
    path = snapshot_path(0, await ledger.snapshot())
    present = LedgerInMemory(7, FakeStore(objects=backup))
    present.grow(e.TermStarted(leader_epoch=8, instance="a", term_id=88))
    present.store.objects[path] = ledger.store.objects[path]

    with pytest.raises(LedgerError, match="is of another history: the ledger was put back to an older state"):
        await present.restored()


async def test_the_end_of_a_ledger_is_read_and_listed_at_once_if_clients_wait() -> None:
    """Clients wait for it while a shard changes its leader."""
    ledger = LedgerInMemory(4)
    state, _ = await ledger.restored()
    ledger.store.latency_seconds = (1.0, 1.0)
    loop = asyncio.get_running_loop()

    for new_chunks in range(3):
        for _ in range(new_chunks):
            ledger.grow()
        began = loop.time()
        _, read = await catch_up(ledger.ledger, state, ledger.on_unusable, urgent=True)
        assert (read, loop.time() - began) == (new_chunks, pytest.approx(new_chunks + 1))


async def test_an_unreachable_store_leaves_no_task_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Each attempt of a follower would log an error with a traceback of asyncio."""
    ledger = LedgerInMemory(4)
    state, _ = await ledger.restored()
    ledger.store.outage()

    with pytest.raises(StoreUnavailableError):
        await catch_up(ledger.ledger, state, ledger.on_unusable)

    gc.collect()
    assert len(asyncio.all_tasks()) == 1
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("lost", [10, 11])
async def test_a_new_leader_finds_a_gap_behind_its_state(lost: int) -> None:
    """Rule 3: it must not write into one."""
    ledger = LedgerInMemory(9)
    await ledger.snapshot()
    state, _ = await ledger.restored()
    for _ in range(3):
        ledger.grow()
    ledger.lose(lost)

    with pytest.raises(LedgerError, match=f"chunk {lost} is missing; the ledger has a gap"):
        await catch_up(ledger.ledger, state, ledger.on_unusable, urgent=True)


async def test_a_snapshot_is_written_when_it_is_due_and_old_ones_are_deleted() -> None:
    ledger = LedgerInMemory(3)
    assert await take_snapshot(ledger.ledger, least_chunks=4, now_ms=0) is None
    numbers = []
    for _ in range(RETAINED_SNAPSHOTS + 2):
        ledger.grow()
        numbers.append(await ledger.snapshot())
    assert await take_snapshot(ledger.ledger, least_chunks=1, now_ms=0) is None

    assert numbers[-RETAINED_SNAPSHOTS:] == await ledger.ledger.snapshots()


async def test_a_job_keeps_the_last_intact_snapshot_however_many_damaged_ones_follow() -> None:
    ledger = LedgerInMemory(3)
    intact = await ledger.snapshot()
    for _ in range(RETAINED_SNAPSHOTS + 1):
        ledger.grow()
        ledger.store.objects[snapshot_path(0, await ledger.snapshot())] = b""

    assert intact in await ledger.ledger.snapshots()


async def test_no_snapshot_is_written_before_its_chunks_are_durable() -> None:
    """A chunk can be read before it is durable; a snapshot that remains without its chunk stops the shard."""
    ledger = LedgerInMemory(3)
    ledger.store.fail_next("unavailable", "make_durable")

    with pytest.raises(StoreUnavailableError):
        await ledger.snapshot()
    assert [] == await ledger.ledger.snapshots()


async def test_a_job_reports_a_ledger_that_has_lost_its_end() -> None:
    ledger = LedgerInMemory(3)
    await ledger.snapshot()
    for number in (1, 2, 3):
        ledger.lose(number)

    with pytest.raises(LedgerError, match="the ledger has lost its end"):
        await take_snapshot(ledger.ledger, least_chunks=2, now_ms=0)


async def test_a_job_that_knows_the_head_lists_chunks_only_if_one_is_missing() -> None:
    """A process that lists a local folder locks it, and the leader creates its next chunk there."""
    ledger = LedgerInMemory(5)
    await ledger.snapshot()
    for lost in (None, 12):
        for _ in range(5):
            ledger.grow()
        head = ledger.state.chunk
        listing = ledger.ledger.numbers = AsyncMock(side_effect=ledger.ledger.numbers)  # type: ignore[method-assign]
        if lost is None:
            assert head == await take_snapshot(ledger.ledger, least_chunks=2, now_ms=0, head=head)
            listing.assert_not_awaited()
            continue
        ledger.lose(lost)
        with pytest.raises(LedgerError, match=f"chunk {lost} is missing; the ledger has a gap"):
            await take_snapshot(ledger.ledger, least_chunks=2, now_ms=0, head=head)


async def test_the_newest_number_requires_a_ledger_without_gaps() -> None:
    ledger = LedgerInMemory(9)
    ledger.lose(5)
    with pytest.raises(LedgerError, match="chunk 5 is missing, and no snapshot covers it"):
        await ledger.ledger.newest()
    ledger.store.objects[snapshot_path(0, 4)] = b""
    with pytest.raises(LedgerError, match="chunk 5 is missing"):
        await ledger.ledger.newest()
    ledger.store.objects[snapshot_path(0, 5)] = b""

    assert 9 == await ledger.ledger.newest()
    ledger.store.objects[snapshot_path(0, 10)] = b""
    with pytest.raises(LedgerError, match="chunk 10 is missing, and a snapshot includes it"):
        await ledger.ledger.newest()


async def test_foreign_objects_among_the_chunks_are_skipped_and_reported_when_they_change() -> None:
    kept = LedgerInMemory(2)
    reported: list[list[str]] = []
    ledger = Ledger(kept.store, 0, lambda names: reported.append(list(names)))
    names = ["000000000001.parquet.bak", "000000000003.parquet.tmp", "README.txt"]
    for name in names:
        kept.store.objects[f"{chunk_folder(0)}/{name}"] = b""
        assert 2 == await ledger.newest()
    await catch_up(ledger, ShardState(0), kept.on_unusable)
    for name in names:
        await ledger.numbers(after=1)
        del kept.store.objects[f"{chunk_folder(0)}/{name}"]
    await ledger.numbers()
    await ledger.numbers()

    assert [names[:1], names[:2], names, []] == reported


@pytest.mark.parametrize("meanwhile", ["trimmed", "put back"])
async def test_a_snapshot_job_that_was_suspended_writes_nothing_about_another_ledger(meanwhile: str) -> None:
    ledger = LedgerInMemory(10)
    make_durable = ledger.ledger.make_durable

    async def suspended() -> None:
        await make_durable()
        if meanwhile == "trimmed":
            for _ in range(5):
                ledger.grow()
            state, _ = await ledger.restored()
            ledger.store.objects[snapshot_path(0, 15)] = encode_snapshot(state, written_at_ms=0)
            ledger.trim(12)
        else:
            other = LedgerInMemory(4)
            for _ in range(6):
                other.grow(e.TermStarted(leader_epoch=9, instance="b", term_id=9))
            ledger.store.objects |= other.store.objects

    ledger.ledger.make_durable = suspended  # type: ignore[method-assign]
    if meanwhile == "trimmed":
        assert await take_snapshot(ledger.ledger, least_chunks=1, now_ms=0) is None
    else:
        with pytest.raises(LedgerError, match="chunk 10 has changed since it was read"):
            await take_snapshot(ledger.ledger, least_chunks=1, now_ms=0)
    assert snapshot_path(0, 10) not in ledger.store.objects
