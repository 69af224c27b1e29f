"""Writing objects to a folder. test_object_store.py and the contract suite test the folder as a store."""

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from headgate.errors import ObjectExistsError, StoreUnavailableError
from headgate.storage.local_writer import MAX_FILES_AHEAD, THREADS, LocalWriter
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


def unnamed_files(folder: Path) -> dict[int, int]:
    """Return the unnamed files in ``folder`` that this process has open: handle → inode."""
    found = {}
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The handle of the listing itself.
            if str(handle.readlink()).startswith(f"{folder}/"):
                found[int(handle.name)] = handle.stat().st_ino
    return found


async def test_an_existing_name_stays_and_only_the_next_file_is_left(tmp_path: Path):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")

    with pytest.raises(ObjectExistsError):
        await writer.create("shard/1", b"second")
    assert (tmp_path / "shard" / "1").read_bytes() == b"first"

    await until(lambda: unnamed_files(tmp_path / "shard"))
    [inode] = unnamed_files(tmp_path / "shard").values()
    await writer.create("shard/2", b"second")
    assert inode == (tmp_path / "shard" / "2").stat().st_ino
    assert [len(each._threads) for each in writer._threads] == [1, *[0] * (THREADS - 1)]
    writer._threads[0].shutdown()
    del writer
    assert not unnamed_files(tmp_path / "shard")


async def test_few_files_are_open_ahead_those_of_the_latest_folders(tmp_path: Path):
    writer = LocalWriter(tmp_path)
    for number in range(MAX_FILES_AHEAD + 2):
        await writer.create(f"{number}/1", b"")
        await until(lambda: str(tmp_path / f"{number}") in writer._ahead)  # noqa: B023 - called in its turn
    writer._threads[0].shutdown()

    assert len(unnamed_files(tmp_path)) == MAX_FILES_AHEAD
    assert [Path(each).name for each in writer._ahead] == [str(2 + number) for number in range(MAX_FILES_AHEAD)]


async def test_a_file_is_not_used_once_another_file_system_is_mounted_at_its_folder(tmp_path: Path):
    shard, writer = tmp_path / "shard", LocalWriter(tmp_path)
    shard.symlink_to(tmp_path)
    await writer.create("shard/1", b"first")
    await until(lambda: writer._ahead)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert os.stat(other).st_dev != os.stat(tmp_path).st_dev  # noqa: PTH116
        shard.unlink()
        shard.symlink_to(other)
        await writer.create("shard/2", b"second")
        assert (Path(other) / "2").read_bytes() == b"second"


async def test_a_file_that_cannot_be_linked_fails_one_attempt(tmp_path: Path, monkeypatch):
    writer = LocalWriter(tmp_path)
    await writer.create("shard/1", b"first")
    link = os.link

    def on_another_file_system(*args, **kwargs):
        monkeypatch.setattr(os, "link", link)
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", on_another_file_system)
    with pytest.raises(StoreUnavailableError, match=r"shard/2: Invalid cross-device link"):
        await writer.create("shard/2", b"second")

    await writer.create("shard/2", b"second")
    assert (tmp_path / "shard" / "2").read_bytes() == b"second"


async def test_a_write_finishes_although_its_caller_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer, go, used, fsync = LocalWriter(tmp_path), threading.Event(), set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: used.add(threading.get_ident()) or (go.wait(60) and fsync(handle)))

    writes = [asyncio.create_task(writer.create(f"a/{number}", b"x")) for number in range(THREADS + 1)]
    await asyncio.sleep(0)
    writes[-1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await writes[-1]
    go.set()
    await asyncio.gather(*writes[:-1])
    await until((tmp_path / "a" / f"{THREADS}").exists)

    assert (THREADS, b"x") == (len(used), (tmp_path / "a" / f"{THREADS}").read_bytes())


@pytest.mark.parametrize("left", ["an empty folder", "nothing", "a note"])
async def test_a_root_whose_disk_was_unmounted_gets_no_objects(left: str, tmp_path: Path):
    """A leader would acknowledge what is gone once the disk is back."""
    root, away = tmp_path / "root", tmp_path / "away"
    writer = LocalWriter(root)
    await writer.create("shard/1", b"first")
    root.rename(away)
    if left != "nothing":
        root.mkdir()
    if left == "a note":
        (root / "not mounted").touch()

    with pytest.raises(StoreUnavailableError, match=r"/(root|shard) has lost all its objects: mount its disk again"):
        await writer.create("shard/2", b"second")
    assert not (root / "shard").exists()
    shutil.rmtree(root, ignore_errors=True)
    away.rename(root)
    await writer.create("shard/2", b"second")
    await writer.create("other/1", b"first")
