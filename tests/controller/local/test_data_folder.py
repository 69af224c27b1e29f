"""The data folder of a node: its lock, its files, and its ports."""

import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from controller.local.data_folder import DataFolder, NodeState, reserve_port
from controller.local.reserved_port import LOOPBACK, ReservedPort
from headgate.errors import ConfigError


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port on which a server listens."""
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_folder_in_use_is_rejected_with_the_process_id(tmp_path: Path):
    with DataFolder(tmp_path / "data"):
        with pytest.raises(ConfigError, match=rf"in use by the node with process id {os.getpid()}; stop that node"):
            DataFolder(tmp_path / "data").__enter__()
        # The rejected attempt must not release the lock.
        with pytest.raises(ConfigError, match="in use"):
            DataFolder(tmp_path / "data").__enter__()


def test_a_killed_node_releases_its_folder(tmp_path: Path):
    code = (
        "import os, sys, pathlib\nfrom controller.local.data_folder import DataFolder\n"
        "DataFolder(pathlib.Path(sys.argv[1])).__enter__()\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)

    with DataFolder(tmp_path):
        assert (tmp_path / "up.lock").read_text() == f"{os.getpid()}\n"


def test_a_node_starts_although_its_process_id_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with DataFolder(tmp_path), pytest.raises(ConfigError, match="in use"), DataFolder(tmp_path):
        pass


def test_a_folder_that_cannot_be_created_is_a_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"data folder .*file/data: Not a directory; choose another with --data"):
        DataFolder(tmp_path / "file" / "data").__enter__()


def test_written_files_are_private_and_leave_no_drafts(tmp_path: Path):
    with DataFolder(tmp_path) as folder:
        folder.write("client.toml", "old")
        path = folder.write("client.toml", "new")

    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(item.name for item in tmp_path.iterdir()) == ["client.toml", "logs", "up.lock"]


def test_a_file_that_cannot_be_written_is_a_clear_error_and_leaves_no_draft(tmp_path: Path):
    with DataFolder(tmp_path) as folder:
        (tmp_path / "client.toml").mkdir()

        with pytest.raises(ConfigError, match=r"cannot write .*client\.toml"):
            folder.write("client.toml", "new")

    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_the_state_is_saved_and_loaded(tmp_path: Path):
    with DataFolder(tmp_path) as folder:
        assert folder.load_state() == NodeState()
        folder.save_state(NodeState(mqtt_port=1, shards=4))
        assert folder.load_state() == NodeState(mqtt_port=1, shards=4)


@pytest.mark.parametrize("damaged", [b"{", b'{"ledger": "\xff"}', b'{"mqtt_port": 65536}'])
def test_a_damaged_state_file_is_named_with_a_remedy(damaged: bytes, tmp_path: Path):
    (tmp_path / "up.json").write_bytes(damaged)

    with DataFolder(tmp_path) as folder, pytest.raises(ConfigError, match=r"up\.json.*delete the file"):
        folder.load_state()


def chosen(*wishes: int | None, reserved: Sequence[int] = ()) -> int:
    with reserve_port("--mqtt-port", *wishes, reserved) as held:
        return held.number


def test_a_requested_port_is_reserved_or_rejected(busy_port: int):
    with ReservedPort() as free:
        assert chosen(free.number, 0, busy_port) == free.number
    with pytest.raises(ConfigError, match=rf"--mqtt-port {busy_port}: the port is in use; choose another, or 0"):
        reserve_port("--mqtt-port", busy_port, 0, 0)


def test_the_default_is_the_last_port_then_the_usual_one_then_any(busy_port: int):
    with ReservedPort() as last, ReservedPort() as usual:
        assert chosen(None, last.number, usual.number) == last.number
        assert chosen(None, busy_port, usual.number) == usual.number
        assert chosen(None, last.number, usual.number, reserved=[last.number]) == usual.number
    assert chosen(None, busy_port, busy_port) not in (0, busy_port)
