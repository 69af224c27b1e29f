"""What every `Store` does: the same tests on the fake, on a folder and on obstore."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import obstore.store
import pytest

from headgate.errors import ObjectExistsError, ObjectMissingError
from headgate.store import LocalStore, RemoteStore, Store
from tests.fakes.store import FakeStore


@pytest.fixture(params=["fake", "folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "fake":
            return FakeStore(random.Random(1), latency_seconds=(0.0, 0.002))
        case "folder":
            return LocalStore(tmp_path / "ledger")
        case _:
            return RemoteStore(obstore.store.MemoryStore())


@pytest.mark.parametrize("data", [b"", b"\0\xff", b"x" * 3_000_000], ids=["empty", "binary", "large"])
async def test_what_was_created_is_read(store: Store, data: bytes) -> None:
    await store.create("ledger/shard=0001/000000000001.parquet", data)

    assert await store.read("ledger/shard=0001/000000000001.parquet") == data


async def test_an_object_is_never_replaced(store: Store) -> None:
    await store.create("a/1", b"first")

    with pytest.raises(ObjectExistsError, match="a/1"):
        await store.create("a/1", b"second")

    assert await store.read("a/1") == b"first"


async def test_of_many_who_create_at_once_exactly_one_succeeds(store: Store) -> None:
    outcomes = await asyncio.gather(*(store.create("a/1", b"%d" % n) for n in range(8)), return_exceptions=True)

    winners = [n for n, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [ObjectExistsError] * 7
    assert await store.read("a/1") == b"%d" % winners[0]


async def test_a_missing_object_is_said_to_be_missing(store: Store) -> None:
    await store.create("a/1", b"")

    with pytest.raises(ObjectMissingError, match="a/2"):
        await store.read("a/2")


async def test_names_are_those_of_one_folder_after_a_given_one_in_order(store: Store) -> None:
    for path in ("a/03", "a/01", "a/02", "ab/01", "b/04"):
        await store.create(path, b"")

    assert await store.names("a") == ["01", "02", "03"]
    assert await store.names("a", after="01") == ["02", "03"]
    assert await store.names("a", after="015") == ["02", "03"]
    assert await store.names("a", after="03") == []


async def test_a_folder_that_is_not_there_has_no_names(store: Store) -> None:
    assert await store.names("nowhere") == []
    assert await store.names("nowhere", after="1") == []


async def test_what_was_deleted_is_gone_and_can_be_created_again(store: Store) -> None:
    await store.create("a/1", b"old")

    await store.delete("a/1")
    await store.delete("a/1")

    assert await store.names("a") == []
    await store.create("a/1", b"new")
    assert await store.read("a/1") == b"new"
