"""A reserved port: assigned to no other socket, but usable for its server."""

import errno
import socket
import sys

import pytest

from controller.local import reserved_port
from controller.local.reserved_port import LOOPBACK, ReservedPort, port_is_free

IP_LOCAL_PORT_RANGE = 51
"""Socket option of Linux 6.3 and later: the range from which the kernel assigns a port."""


def taker_of(port: int) -> socket.socket:
    """Return a socket to which the kernel can assign only ``port``."""
    taker = socket.socket()
    try:
        taker.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, (port | port << 16).to_bytes(4, sys.byteorder))
    except OSError as error:
        taker.close()
        if error.errno == errno.ENOPROTOOPT or sys.platform != "linux":
            pytest.skip(
                "this kernel cannot restrict the assigned port, Linux 6.3 can; the test would have to use up all ports"
            )
        raise
    return taker


@pytest.mark.parametrize("reuse", [0, 1])
def test_the_kernel_assigns_a_reserved_port_to_no_other_socket(reuse: int):
    with ReservedPort() as held, taker_of(held.number) as server, taker_of(held.number) as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        with pytest.raises(OSError, match="in use"):
            server.bind((LOOPBACK, 0))
        with socket.create_server((LOOPBACK, 0)) as other, pytest.raises(OSError):
            client.connect(other.getsockname())

        held.close()
        server.bind((LOOPBACK, 0))
        assert server.getsockname()[1] == held.number


def test_a_server_can_listen_on_a_reserved_port_repeatedly():
    with ReservedPort() as held:
        for _ in range(2):
            assert port_is_free(held.number)
            with socket.create_server((LOOPBACK, held.number)) as server:
                assert not port_is_free(held.number)
                with socket.create_connection(server.getsockname()), server.accept()[0]:
                    pass


def test_a_port_in_use_cannot_be_reserved():
    with socket.create_server((LOOPBACK, 0)) as server, pytest.raises(OSError, match="in use"):
        ReservedPort(server.getsockname()[1])


def test_a_port_is_not_reserved_where_that_would_block_its_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reserved_port, "port_is_free", lambda _: False)
    with ReservedPort() as held, socket.socket() as exclusive:
        exclusive.bind((LOOPBACK, held.number))
