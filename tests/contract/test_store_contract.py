"""The contract of `Store`: the same tests on the fake, a folder, obstore, and two servers of S3."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import obstore.store
import pytest

from headgate import errors
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import IDENTITY_PATH, chunk_path
from headgate.storage import object_store
from headgate.storage.object_store import LocalStore, RemoteStore, Store, max_bytes, open_store
from tests.support.fakes.object_store import FakeStore
from tests.support.servers.s3_server import BUCKET, SECRET, Failure, S3Server, s3_server
from tests.support.servers.seaweedfs import seaweedfs

pytestmark = pytest.mark.real_time

PREFIXES = itertools.count(1)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A separate prefix in the bucket for each test."""
    return f"some folder/{next(PREFIXES)}"


@pytest.fixture
def store_on_s3(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store below its own prefix, opened as the program does: by URL and environment."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}/{prefix}")


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as environment:
        yield environment


@pytest.fixture
def store_on_seaweedfs(seaweed: dict[str, str], prefix: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}/{prefix}")


SERVERS = [pytest.param(name, marks=pytest.mark.contract) for name in ("s3", "seaweedfs")]


@pytest.fixture(params=["fake", "folder", "folder read in turn", "bucket", *SERVERS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "s3" | "seaweedfs" as server:
            return request.getfixturevalue(f"store_on_{server}")
        case "fake":
            return FakeStore(random.Random(1), latency_seconds=(0.0, 0.002))
        case "folder":
            return LocalStore(tmp_path / "ledger")
        case "folder read in turn":
            return LocalStore(tmp_path / "ledger", waits=True)
        case _:
            return RemoteStore(obstore.store.MemoryStore())


async def test_what_is_in_a_folder_is_made_durable(store: Store) -> None:
    await store.make_durable("chunks/shard=0001")  # it does not exist
    await store.create("chunks/shard=0001/000000000001.parquet", b"x")

    await store.make_durable("chunks/shard=0001")

    assert await store.read("chunks/shard=0001/000000000001.parquet") == b"x"


@pytest.mark.parametrize("data", [b"", b"\0\xff", b"x" * 3_000_000], ids=["empty", "binary", "large"])
async def test_an_object_is_read_as_it_was_created(store: Store, data: bytes) -> None:
    await store.create("chunks/shard=0001/000000000001.parquet", data)

    assert await store.read("chunks/shard=0001/000000000001.parquet") == data


async def test_an_object_that_is_too_large_for_its_place_is_neither_written_nor_read(store: Store, monkeypatch) -> None:
    large = b"x" * (max_bytes(IDENTITY_PATH) + 1)
    with pytest.raises(errors.ForeignObjectError, match=f"^{IDENTITY_PATH} has {len(large)} bytes"):
        await store.create(IDENTITY_PATH, large)
    with pytest.raises(errors.ObjectMissingError):
        await store.read(IDENTITY_PATH)

    with monkeypatch.context() as unlimited:
        unlimited.setitem(object_store.MAX_BYTES, IDENTITY_PATH, len(large))
        await store.create(IDENTITY_PATH, large)
    with pytest.raises(errors.ForeignObjectError, match=f"^{IDENTITY_PATH} has {len(large)} bytes"):
        await store.read(IDENTITY_PATH)


async def test_exactly_one_of_many_concurrent_creations_succeeds(store: Store) -> None:
    outcomes = await asyncio.gather(*(store.create("a/1", b"%d" % n) for n in range(8)), return_exceptions=True)

    winners = [n for n, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [errors.ObjectExistsError] * 7
    assert await store.read("a/1") == b"%d" % winners[0]


async def test_names_are_those_of_the_objects_of_one_folder_after_a_given_name_sorted(store: Store) -> None:
    for path in ("a/03", "a/01", "a/02", "a/README.txt", "a/old/2", "a/old.parquet/3", "ab/01", "b/04"):
        await store.create(path, b"")

    assert await store.names("a") == ["01", "02", "03", "README.txt"]
    assert await store.names("a", after="01") == ["02", "03", "README.txt"]
    assert await store.names("a", after="015") == ["02", "03", "README.txt"]
    assert await store.names("a", after="README.txt") == []


async def test_a_deleted_object_can_be_created_again(store: Store) -> None:
    await store.create("a/1", b"old")

    await store.delete("a/1")
    await store.delete("a/1")

    assert await store.names("a") == []
    await store.create("a/1", b"new")
    assert await store.read("a/1") == b"new"


async def test_paths_are_those_at_any_depth_and_folders_those_directly_below(store: Store) -> None:
    for path in ("r/s=1/a/t=7/x", "r/s=1/a/y", "r/s=1/b/z", "r/s=12/q", "r/w", "rr/v"):
        await store.create(path, b"")

    assert await store.paths("r/s=1") == ["r/s=1/a/t=7/x", "r/s=1/a/y", "r/s=1/b/z"]
    assert await store.folders("r") == ["s=1", "s=12"]
    assert await store.folders("r/s=1") == ["a", "b"]
    assert await store.paths("nowhere") == []
    assert await store.folders("nowhere") == []


async def test_a_folder_disappears_with_its_last_object(store: Store, request: pytest.FixtureRequest) -> None:
    """Otherwise a local store would keep a folder tree for everything that was ever deleted. SeaweedFS keeps it."""
    kept = ["a"] if "seaweedfs" in request.node.name else []
    for path in ("r/s=1/a/t=7/x", "r/s=1/b/z"):
        await store.create(path, b"")
    await store.delete("r/s=1/a/t=7/x")

    assert await store.folders("r/s=1") == [*kept, "b"]
    await store.delete("r/s=1/b/z")
    await store.create("r/s=1/b/z", b"again")
    assert await store.paths("r") == ["r/s=1/b/z"]


@pytest.mark.contract
async def test_a_bucket_with_many_objects_is_listed_to_its_end(s3: S3Server, prefix: str, store_on_s3: Store) -> None:
    """S3 lists a thousand objects per request."""
    s3.fill(f"{prefix}/a/{n:04d}" for n in range(1_100))

    assert await store_on_s3.names("a", after="0049") == [f"{n:04d}" for n in range(50, 1_100)]


@pytest.mark.contract
@pytest.mark.parametrize(("failure", "times"), [("500", 1), ("500", 9), ("cut", 1), ("cut", 9), ("503", 7)])
async def test_a_chunk_is_stored_once_by_a_bucket_that_is_busy_or_does_not_say_that_it_has_stored_it(
    s3: S3Server, store_on_s3: Store, failure: Failure, times: int
) -> None:
    """obstore repeats seven times. A repetition gets 412 for what its first attempt has stored."""
    ledger = Ledger(store_on_s3, 0)
    s3.failures += [failure] * times
    try:
        await ledger.append(1, b"own")
    finally:
        s3.failures.clear()

    with pytest.raises(errors.ObjectExistsError, match="other content"):
        await ledger.append(1, b"another's")
    assert await store_on_s3.read(chunk_path(0, 1)) == b"own"


@pytest.mark.contract
@pytest.mark.usefixtures("store_on_s3")
async def test_a_write_to_a_bucket_that_does_not_exist_fails() -> None:
    with pytest.raises(errors.OutcomeUnknownError, match="a not found"):
        await open_store("s3://no-such-bucket").create("a", b"1")


async def test_the_error_of_an_unreachable_bucket_is_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as gone:
        for name, value in gone.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}")
        await store.create("a/1", b"")

    with pytest.raises(errors.StoreUnavailableError, match="cannot read a/1: ") as unavailable:
        await store.read("a/1")
    with pytest.raises(errors.OutcomeUnknownError, match="a/2") as unknown:
        await store.create("a/2", b"")

    for error in (unavailable, unknown):
        assert "\n" not in str(error.value)
        assert SECRET not in str(error.value)
