"""A held port: nobody else's, and yet there for the server that it is held for."""

from __future__ import annotations

import errno
import socket
import sys

import pytest

from controller.local import reserved_port
from controller.local.reserved_port import LOOPBACK, ReservedPort, port_is_free

IP_LOCAL_PORT_RANGE = 51
"""Linux 6.3 and later: the ports that one socket is given when it takes any."""


def taker_of(port: int) -> socket.socket:
    """Return a socket that takes any port, as long as it is this one."""
    taker = socket.socket()
    try:
        taker.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, (port | port << 16).to_bytes(4, sys.byteorder))
    except OSError as error:
        taker.close()
        if error.errno == errno.ENOPROTOOPT or sys.platform != "linux":
            pytest.skip("this kernel cannot be told which port to give; all of them would have to be taken")
        raise
    return taker


@pytest.mark.parametrize("reuse", [0, 1])
def test_who_takes_any_port_is_not_given_one_that_is_held(reuse: int):
    with ReservedPort() as held, taker_of(held.number) as server, taker_of(held.number) as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        with pytest.raises(OSError, match="in use"):
            server.bind((LOOPBACK, 0))
        with socket.create_server((LOOPBACK, 0)) as other, pytest.raises(OSError):
            client.connect(other.getsockname())

        held.close()
        server.bind((LOOPBACK, 0))
        assert server.getsockname()[1] == held.number


def test_a_server_that_is_told_its_number_listens_and_listens_again():
    with ReservedPort() as held:
        for _ in range(2):
            assert port_is_free(held.number)
            with socket.create_server((LOOPBACK, held.number)) as server:
                assert not port_is_free(held.number)
                with socket.create_connection(server.getsockname()), server.accept()[0]:
                    pass


def test_a_port_on_which_somebody_listens_is_refused():
    with socket.create_server((LOOPBACK, 0)) as server, pytest.raises(OSError, match="in use"):
        ReservedPort(server.getsockname()[1])


def test_where_holding_keeps_the_server_out_nothing_is_held(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reserved_port, "port_is_free", lambda _: False)
    with ReservedPort() as held, socket.socket() as exclusive:
        exclusive.bind((LOOPBACK, held.number))
