"""What every `Store` does: the same tests on the fake, on a folder, on obstore, and on a server that speaks S3."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import obstore.store
import pytest

from headgate.errors import ObjectExistsError, ObjectMissingError, OutcomeUnknownError, StoreUnavailableError
from headgate.storage.object_store import LocalStore, RemoteStore, Store, open_store
from tests.support.object_store import FakeStore
from tests.support.s3_server import BUCKET, SECRET, S3Server, s3_server

PREFIXES = itertools.count(1)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A place of its own in the bucket for each test."""
    return f"some folder/{next(PREFIXES)}"


@pytest.fixture
def store_on_s3(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store below a prefix of its own, opened as the program does: by URL and environment alone."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}/{prefix}")


@pytest.fixture(params=["fake", "folder", "bucket", pytest.param("s3", marks=pytest.mark.contract)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "s3":
            return request.getfixturevalue("store_on_s3")
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


async def test_paths_are_those_of_a_folder_at_any_depth_and_folders_those_directly_in_it(store: Store) -> None:
    for path in ("r/s=1/a/t=7/x", "r/s=1/a/y", "r/s=1/b/z", "r/s=12/q", "r/w", "rr/v"):
        await store.create(path, b"")

    assert await store.paths("r/s=1") == ["r/s=1/a/t=7/x", "r/s=1/a/y", "r/s=1/b/z"]
    assert await store.folders("r") == ["s=1", "s=12"]
    assert await store.folders("r/s=1") == ["a", "b"]
    assert await store.paths("nowhere") == []
    assert await store.folders("nowhere") == []


async def test_a_folder_is_gone_with_its_last_object(store: Store) -> None:
    """Or a store of folders would keep a tree of them for everything that was ever deleted."""
    for path in ("r/s=1/a/t=7/x", "r/s=1/b/z"):
        await store.create(path, b"")
    await store.delete("r/s=1/a/t=7/x")

    assert await store.folders("r/s=1") == ["b"]
    await store.delete("r/s=1/b/z")
    await store.create("r/s=1/b/z", b"again")
    assert await store.paths("r") == ["r/s=1/b/z"]


@pytest.mark.contract
async def test_a_bucket_with_many_chunks_is_listed_to_its_end(s3: S3Server, prefix: str, store_on_s3: Store) -> None:
    """S3 lists a thousand at a time."""
    s3.fill(f"{prefix}/a/{n:04d}" for n in range(1_100))

    assert await store_on_s3.names("a", after="0049") == [f"{n:04d}" for n in range(50, 1_100)]


@pytest.mark.contract
async def test_a_bucket_out_of_reach_is_told_in_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as gone:
        for name, value in gone.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}")
        await store.create("a/1", b"")

    with pytest.raises(StoreUnavailableError, match="cannot read a/1: ") as told:
        await store.read("a/1")
    with pytest.raises(OutcomeUnknownError, match="a/2") as unknown:
        await store.create("a/2", b"")

    for error in (told, unknown):
        assert "\n" not in str(error.value)
        assert SECRET not in str(error.value)
