"""The path of the socket between daemon and Spark process, and who is believed at its other end."""

import os
import socket
from pathlib import Path

import pytest

from drain.peer import PeerRefusedError, check_peer, trusted_users
from drain.service.service import main
from drain.setting_values import SOCKET_PATH_BYTES, own_socket, socket_path
from headgate.errors import ConfigError


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "'' is no absolute path of a Unix socket"),
        ("s", "'s' is no absolute path"),
        ("/", "'/' is no absolute path"),
        ("tcp:127.0.0.1:7", "'tcp:127.0.0.1:7' is no absolute path"),
        ("/" + "x" * SOCKET_PATH_BYTES, "the path has 108 bytes, but the path of a socket may have 107"),
    ],
    ids=["empty", "relative", "root", "a port", "too long"],
)
def test_the_path_of_a_socket_is_absolute_and_short(path: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        socket_path(path)

    assert str(refused.value).startswith(problem)


def test_the_spark_process_names_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ledger", "file:///x", "--listen", "s"]) == 2

    assert capsys.readouterr().err.startswith("headgate: --listen: 's' is no absolute path")


@pytest.mark.parametrize("folder", ["/var/lib/headgate/drain", "/" + "x" * 200], ids=["short", "too long for a socket"])
def test_no_two_daemons_of_a_machine_have_the_same_socket(folder: str) -> None:
    """Not even daemons of two clusters, with the same folder by default and the same name."""
    owners = [("shop", "a"), ("shop", "b"), ("bank", "a"), ("shopa", ""), ("", "shopa")]
    paths = {own_socket(Path(folder), *owner) for owner in owners} | {own_socket(Path(folder) / "other", "shop", "a")}

    assert len(paths) == len(owners) + 1
    assert all(socket_path(str(path)) == path for path in paths)
    assert own_socket(Path(folder), "shop", "a") in paths, "the same after a restart"


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux tells who a peer is")
def test_only_a_process_of_this_user_and_with_the_expected_id_is_believed() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        check_peer(one, trusted_users())
        check_peer(one, trusted_users(), os.getpid())
        with pytest.raises(PeerRefusedError, match="it belongs to user"):
            check_peer(one, {os.geteuid() + 1})
        with pytest.raises(PeerRefusedError, match=f"it is process {os.getpid()}, and this daemon started 1"):
            check_peer(one, trusted_users(), 1)
