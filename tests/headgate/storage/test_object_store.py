"""A folder as a store, where it differs from a bucket. tests/contract/test_store_contract.py tests both."""

import _thread
import asyncio
import errno
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from controller.backup.copy import copy_shard
from controller.settings.sections import MAX_QUEUE_BYTES
from controller.snapshots.job import take_snapshot
from drain.backlog.results import Result, publish_result
from headgate.errors import ConfigError, ForeignObjectError, ObjectExistsError, StoreUnavailableError
from headgate.ledger.identity import claim_ledger_id, name_level
from headgate.ledger.ledger import Ledger
from headgate.storage.object_store import MAX_CHUNK_BYTES, LocalStore, _await_foreign_threads, open_store
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.object_store import FakeStore

pytestmark = pytest.mark.real_time


async def test_an_unusable_folder_fails_every_operation_until_it_is_repaired(tmp_path: Path):
    store = LocalStore(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("in the way")

    for operation in (
        store.create("shard/1", b""),
        store.read("shard/1"),
        store.names("shard"),
        store.folders("shard"),
        store.delete("shard/1"),
    ):
        with pytest.raises(StoreUnavailableError, match="ledger"):
            await operation

    (tmp_path / "ledger").unlink()
    await store.create("shard/1", b"back")
    assert await store.read("shard/1") == b"back"


@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed files", "temporary names"])
async def test_writing_an_object_leaves_no_other_files(tmp_path: Path, monkeypatch, unnamed: bool):
    opened = os.open

    def without_unnamed_files(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not on this file system")
        return opened(path, flags, *args, **kwargs)

    if not unnamed:
        monkeypatch.setattr(os, "open", without_unnamed_files)
    store = LocalStore(tmp_path / "deep" / "ledger")

    await store.create("shard/1", b"first")
    with pytest.raises(ObjectExistsError):
        await store.create("shard/1", b"second")
    await store.create("shard/2", b"x" * 100_000)

    assert await store.read("shard/1") == b"first"
    assert sorted(path.name for path in (tmp_path / "deep" / "ledger" / "shard").iterdir()) == ["1", "2"]
    assert len(await store.read("shard/2")) == 100_000


async def test_a_created_folder_is_durable_in_its_parent(tmp_path: Path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())), fsync(handle))
    )

    await LocalStore(tmp_path / "ledger").create("shard/1", b"first")

    folders = [path for path in synced if not Path(path).name.startswith("#")]
    assert folders == [str(tmp_path), str(tmp_path / "ledger"), str(tmp_path / "ledger" / "shard")]


async def test_reads_that_hang_leave_the_threads_of_the_process_to_others(tmp_path: Path, monkeypatch):
    store, repaired = LocalStore(tmp_path), threading.Event()
    monkeypatch.setattr(store, "_read", lambda _: repaired.wait())
    reads = [asyncio.create_task(store.read("chunk")) for _ in range(64)]
    try:
        assert 0 == await asyncio.wait_for(asyncio.to_thread(int), 10)
    finally:
        repaired.set()
        await asyncio.gather(*reads)


async def test_what_readers_have_seen_is_made_durable_by_its_folder(tmp_path: Path, monkeypatch):
    store = LocalStore(tmp_path)
    await store.create("shard/1", b"first")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())))

    await store.make_durable("shard")

    assert synced == [str(tmp_path / "shard")]


async def test_a_folder_that_cannot_be_made_durable_is_named(tmp_path: Path, monkeypatch):
    store = LocalStore(tmp_path)
    await store.create("shard/1", b"first")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))

    with pytest.raises(StoreUnavailableError, match=f"cannot sync {tmp_path}/shard: Input/output error"):
        await store.make_durable("shard")


async def test_a_link_that_leads_nowhere_fails_a_listing_and_is_named(tmp_path: Path):
    """An error that is not the store's would end the daemon, and with it the leaders of all other shards."""
    (tmp_path / "loop").symlink_to("loop")
    for listing in (LocalStore(tmp_path).names(""), LocalStore(tmp_path).folders("")):
        with pytest.raises(StoreUnavailableError, match=f"cannot list {tmp_path}/loop: Too many levels"):
            await listing


@pytest.mark.parametrize("kind", ["a link to a device", "a pipe", "a folder", "a huge file"])
async def test_what_is_no_object_is_refused_before_it_is_read(tmp_path: Path, kind: str):
    """A link to /dev/zero as the next chunk took 17 GB of memory, and with it the leaders of all other shards."""
    place = tmp_path / "chunks" / "shard=0000" / "000000000007.parquet"
    place.parent.mkdir(parents=True)
    match kind:
        case "a pipe":
            os.mkfifo(place)
        case "a folder":
            place.mkdir()
        case "a huge file":
            with place.open("wb") as file:
                file.truncate(MAX_CHUNK_BYTES + 1)
        case _:
            place.symlink_to("/dev/zero")

    with pytest.raises(ForeignObjectError, match=r"^chunks/shard=0000/000000000007\.parquet (is not|has)"):
        await LocalStore(tmp_path).read("chunks/shard=0000/000000000007.parquet")


ENDPOINTS = {
    "s3": {"AWS_ENDPOINT_URL": "{}", "AWS_SKIP_SIGNATURE": "true"},
    "az": {"AZURE_STORAGE_ENDPOINT": "{}/a", "AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_SKIP_SIGNATURE": "true"},
}
"""Scheme → the environment of clients of a server at ``{}``."""


@pytest.mark.parametrize(("scheme", "setting"), [("s3", "AWS_ALLOW_HTTP"), ("az", "AZURE_ALLOW_HTTP")])
@pytest.mark.parametrize("between", ["", "\n"], ids=["one line", "lines"])
async def test_an_error_names_the_setting_that_is_missing_and_what_the_bucket_has_refused(
    monkeypatch: pytest.MonkeyPatch, scheme: str, setting: str, between: str
) -> None:
    parts = ('<?xml version="1.0"?>', "<Error>", "<Code>NoKey</Code>", "<Message>Wrong.\nId: 7</Message>", "</Error>")
    body = between.join(parts).encode()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        for name, value in ENDPOINTS[scheme].items():
            monkeypatch.setenv(name, value.format(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        monkeypatch.delenv(setting, raising=False)
        with pytest.raises(StoreUnavailableError, match=f"{setting}=true"):
            await open_store(f"{scheme}://bucket/ledger").read("shard/1")
        monkeypatch.setenv(setting, "true")
        store = open_store(f"{scheme}://bucket/ledger")
        for operation, place in ((store.read("shard/1"), "read shard/1"), (store.folders(""), "list the bucket")):
            with pytest.raises(StoreUnavailableError, match=rf"^cannot {place}: .*403 Forbidden: NoKey: Wrong\.$"):
                await operation
        if scheme == "s3":
            monkeypatch.setenv("AWS_METADATA_ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
            monkeypatch.delenv("AWS_SKIP_SIGNATURE")
            with pytest.raises(StoreUnavailableError, match="the environment has no credentials of the store"):
                await open_store("s3://bucket/ledger").read("shard/1")
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
        with pytest.raises(ConfigError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
            open_store("az://bucket/ledger")


def test_the_end_of_the_process_waits_for_threads_of_a_library():
    """Python would end such a thread where no other language expects it, and the process with it."""
    begun, ended = threading.Event(), []

    def call_python() -> None:
        begun.set()
        time.sleep(0.1)
        ended.append(True)

    _thread.start_new_thread(call_python, ())
    begun.wait()
    _await_foreign_threads()
    assert ended


def test_everything_that_may_wait_fits_into_a_chunk() -> None:
    assert 2 * MAX_QUEUE_BYTES <= MAX_CHUNK_BYTES


async def test_a_conflict_with_another_request_that_is_under_way_is_no_object() -> None:
    """Buckets answer so with 409. The other request may fail."""
    store = FakeStore()
    store.create = AsyncMock(side_effect=ObjectExistsError("a conflict"))  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError, match=r"a conflict; levels/7.json does not exist"):
        await name_level(store, 7)


# What is written once counts as written, although the store loses its answer: each object of a ledger.


Write = Callable[[FakeStore], Awaitable[object]]


WRITES: dict[str, Write] = {
    "chunk": lambda store: Ledger(store, 0).append(9, b"own"),
    "snapshot": lambda store: take_snapshot(Ledger(store, 0), least_chunks=1, now_ms=0),
    "result": lambda store: publish_result(store, Result(0, 8, ())),
    "ledger_id": lambda store: claim_ledger_id(store, "it"),
    "copy": lambda store: copy_shard(LedgerInMemory(10).store, store, 0, lambda _, __: None),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_an_object_is_recognized_that_a_store_has_created_without_saying_so(write: Write) -> None:
    store, loses = LedgerInMemory(8).store, LedgerInMemory(8).store
    loses.fail_next("unknown_written", times=10)

    await write(store)
    await write(loses)

    new = loses.objects.keys() - LedgerInMemory(8).store.objects.keys()
    assert new == store.objects.keys() - LedgerInMemory(8).store.objects.keys() != set()
