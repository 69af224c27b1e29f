"""Writing objects to a folder. test_object_store.py and the contract suite test the folder as a store."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from headgate.errors import ObjectExistsError, StoreUnavailableError
from headgate.storage.local_writer import LocalWriter, UnnamedFilePool
from tests.support.waiting import until


def unnamed_files(folder: Path) -> list[str]:
    """Return the unnamed files in ``folder`` that this process has open."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            target = str(handle.readlink())
        except FileNotFoundError:
            continue  # The handle of the listing itself.
        if target.startswith(f"{folder}/#"):
            found.append(target)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the folders in which an unnamed file is opened from now on."""
    folders: list[str] = []
    real = os.open

    def counting(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            folders.append(path)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", counting)
    return folders


async def test_the_next_object_of_a_folder_uses_the_prepared_file(tmp_path: Path, opened: list[str]):
    writer = LocalWriter(tmp_path)

    await writer.create("shard/1", b"first")
    await until(lambda: len(opened) == 2)
    await until(lambda: unnamed_files(tmp_path / "shard"))
    (prepared,) = unnamed_files(tmp_path / "shard")
    await writer.create("shard/2", b"second")

    inode = int(Path(prepared.removesuffix(" (deleted)")).name.removeprefix("#"))
    assert (tmp_path / "shard" / "2").stat().st_ino == inode
    assert (tmp_path / "shard" / "2").read_bytes() == b"second"
    assert (tmp_path / "shard" / "2").stat().st_mode == (tmp_path / "shard" / "1").stat().st_mode


async def test_no_file_is_prepared_during_another_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Long enough that the second write has begun when the timer of the first one fires, also on a busy machine.
    writer = LocalWriter(tmp_path, prepare_delay_seconds=0.2)
    due, started, go, fsync = [], [], threading.Event(), os.fsync
    prepare, start = writer._prepare_file, writer._threads.start
    monkeypatch.setattr(writer, "_prepare_file", lambda folder: (prepare(folder), due.append(folder)))
    monkeypatch.setattr(writer._threads, "start", lambda work: (started.append(work), start(work)))
    await writer.create("shard/1", b"first")

    def slow(handle):
        assert go.wait(60)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    writing = asyncio.create_task(writer.create("shard/2", b"second"))
    await until(lambda: due)
    assert started == []
    go.set()
    await writing

    await until(lambda: len(due) == 2)
    assert len(started) == 1


async def test_an_existing_name_consumes_the_prepared_file_and_leaves_nothing(tmp_path: Path):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")

    for _ in range(3):
        await until(lambda: unnamed_files(tmp_path / "shard"))
        with pytest.raises(ObjectExistsError):
            await writer.create("shard/1", b"second")
        await until(lambda: not unnamed_files(tmp_path / "shard"))
        await writer.create(f"shard/{os.urandom(4).hex()}", b"another")

    assert (tmp_path / "shard" / "1").read_bytes() == b"first"


async def test_an_unusable_prepared_file_fails_one_attempt(tmp_path: Path, monkeypatch):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")
    await until(lambda: unnamed_files(tmp_path / "shard"))
    link = os.link

    def on_another_file_system(*args, **kwargs):
        monkeypatch.setattr(os, "link", link)
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", on_another_file_system)
    with pytest.raises(StoreUnavailableError, match=r"shard/2: Invalid cross-device link"):
        await writer.create("shard/2", b"second")

    await writer.create("shard/2", b"second")
    assert (tmp_path / "shard" / "2").read_bytes() == b"second"


async def test_prepared_files_are_closed_with_their_owner(tmp_path: Path):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")
    await until(lambda: unnamed_files(tmp_path / "shard"))

    del writer
    gc.collect()

    assert not unnamed_files(tmp_path / "shard")


def test_the_most_recent_folders_keep_one_prepared_file_each(tmp_path: Path):
    files = UnnamedFilePool(max_prepared=2)
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
        files.prepare(str(folder))
        files.prepare(str(folder))

    assert [len(unnamed_files(folder)) for folder in folders] == [0, 1, 1]
    files.close()
    assert not any(unnamed_files(folder) for folder in folders)


def test_a_closed_pool_prepares_no_files(tmp_path: Path):
    files = UnnamedFilePool()
    files.close()

    files.prepare(str(tmp_path))

    assert not unnamed_files(tmp_path)


def test_acquire_raises_the_error_that_prepare_ignored(tmp_path: Path, monkeypatch):
    files = UnnamedFilePool()

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)

    files.prepare(str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        files.acquire(str(tmp_path))
