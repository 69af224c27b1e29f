"""What is written once counts as written, although the store loses its answer: each object of a ledger."""

from collections.abc import Awaitable, Callable

import pytest

from controller.backup.copy import copy_shard
from controller.snapshots.job import take_snapshot
from drain.backlog.results import Result, publish_result
from headgate.ledger.identity import claim_ledger_id
from headgate.ledger.ledger import Ledger
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.object_store import FakeStore

Write = Callable[[FakeStore], Awaitable[object]]


async def chunk(store: FakeStore) -> None:
    await Ledger(store, 0).append(9, b"own")


async def snapshot(store: FakeStore) -> None:
    await take_snapshot(Ledger(store, 0), least_chunks=1, now_ms=0)


async def result(store: FakeStore) -> None:
    await publish_result(store, Result(0, 8, ()))


async def ledger_id(store: FakeStore) -> None:
    await claim_ledger_id(store, "it")


async def copy(store: FakeStore) -> None:
    await copy_shard(LedgerInMemory(10).store, store, 0, lambda _, __: None)


@pytest.mark.parametrize("write", [chunk, snapshot, result, ledger_id, copy])
async def test_an_object_is_recognized_that_a_store_has_created_without_saying_so(write: Write) -> None:
    store, loses = LedgerInMemory(8).store, LedgerInMemory(8).store
    loses.fail_next("unknown_written", times=10)

    await write(store)
    await write(loses)

    new = loses.objects.keys() - LedgerInMemory(8).store.objects.keys()
    assert new == store.objects.keys() - LedgerInMemory(8).store.objects.keys() != set()
