"""How objects get into a folder; what a folder is as a store is in test_store.py and the contract of stores."""

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


def nameless_files(folder: Path) -> list[str]:
    """Return the files without a name in ``folder`` that this process has open."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            target = str(handle.readlink())
        except FileNotFoundError:
            continue  # The one that listed them.
        if target.startswith(f"{folder}/#"):
            found.append(target)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the folders in which a file without a name is opened from now on."""
    folders: list[str] = []
    real = os.open

    def counting(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            folders.append(path)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", counting)
    return folders


async def test_the_next_object_of_a_folder_takes_the_file_that_was_opened_ahead(tmp_path: Path, opened: list[str]):
    writer = LocalWriter(tmp_path)

    await writer.create("shard/1", b"first")
    await until(lambda: len(opened) == 2)
    await until(lambda: nameless_files(tmp_path / "shard"))
    (ahead,) = nameless_files(tmp_path / "shard")
    await writer.create("shard/2", b"second")

    inode = int(Path(ahead.removesuffix(" (deleted)")).name.removeprefix("#"))
    assert (tmp_path / "shard" / "2").stat().st_ino == inode
    assert (tmp_path / "shard" / "2").read_bytes() == b"second"
    assert (tmp_path / "shard" / "2").stat().st_mode == (tmp_path / "shard" / "1").stat().st_mode


async def test_nothing_is_opened_ahead_beside_an_object_that_is_being_written(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
):
    writer = LocalWriter(tmp_path)
    asked, go, fsync, preopen = [], threading.Event(), os.fsync, writer._preopen
    monkeypatch.setattr(writer, "_preopen", lambda folder: (asked.append(folder), preopen(folder)))
    await writer.create("shard/1", b"first")

    def slow(handle):
        assert go.wait(60)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    writing = asyncio.create_task(writer.create("shard/2", b"second"))
    await until(lambda: len(asked) == 1 and len(opened) == 2)
    go.set()
    await writing

    await until(lambda: len(asked) == 2 and len(opened) == 3)


async def test_a_name_that_is_taken_uses_the_file_up_and_leaves_nothing(tmp_path: Path):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")

    for _ in range(3):
        await until(lambda: nameless_files(tmp_path / "shard"))
        with pytest.raises(ObjectExistsError):
            await writer.create("shard/1", b"second")
        await until(lambda: not nameless_files(tmp_path / "shard"))
        await writer.create(f"shard/{os.urandom(4).hex()}", b"another")

    assert (tmp_path / "shard" / "1").read_bytes() == b"first"


async def test_a_file_ahead_that_is_of_no_use_any_more_costs_one_attempt(tmp_path: Path, monkeypatch):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")
    await until(lambda: nameless_files(tmp_path / "shard"))
    link = os.link

    def on_another_file_system(*args, **kwargs):
        monkeypatch.setattr(os, "link", link)
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", on_another_file_system)
    with pytest.raises(StoreUnavailableError, match=r"shard/2: Invalid cross-device link"):
        await writer.create("shard/2", b"second")

    await writer.create("shard/2", b"second")
    assert (tmp_path / "shard" / "2").read_bytes() == b"second"


async def test_what_was_opened_ahead_is_closed_with_its_owner(tmp_path: Path):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")
    await until(lambda: nameless_files(tmp_path / "shard"))

    del writer
    gc.collect()

    assert not nameless_files(tmp_path / "shard")


def test_only_the_last_folders_keep_a_file_ahead_one_each(tmp_path: Path):
    files = UnnamedFilePool(max_preopened=2)
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
        files.preopen(str(folder))
        files.preopen(str(folder))

    assert [len(nameless_files(folder)) for folder in folders] == [0, 1, 1]
    files.close()
    assert not any(nameless_files(folder) for folder in folders)


def test_nothing_is_opened_ahead_any_more_once_it_is_closed(tmp_path: Path):
    files = UnnamedFilePool()
    files.close()

    files.preopen(str(tmp_path))

    assert not nameless_files(tmp_path)


def test_a_file_that_cannot_be_opened_ahead_is_told_to_whoever_takes_it(tmp_path: Path, monkeypatch):
    files = UnnamedFilePool()

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)

    files.preopen(str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        files.acquire(str(tmp_path))
