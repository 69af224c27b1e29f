"""What systemd hears."""

from __future__ import annotations

import os
import socket

import pytest

from metrics.systemd import SystemdNotifier


@pytest.fixture
def manager(tmp_path):
    """systemd's end of the socket; reading never waits."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.setblocking(False)
        yield listening


def heard(listening):
    messages = []
    while True:
        try:
            messages.append(listening.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_a_service_life_as_systemd_hears_it(manager):
    """Waiting, ready, alive, stopping: each message as systemd reads it."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.watchdog()
    notifier.ready("contending for 4 shards")
    notifier.watchdog()
    notifier.status("leads 2 shards")
    notifier.extend_timeout(1.5)
    notifier.stopping()

    assert heard(manager) == [
        "EXTEND_TIMEOUT_USEC=30000000",
        "WATCHDOG=1",
        "READY=1\nSTATUS=contending for 4 shards",
        "WATCHDOG=1",
        "STATUS=leads 2 shards",
        "EXTEND_TIMEOUT_USEC=1500000",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_nothing_keeps_a_stop_alive(manager):
    """After STOPPING the unit's own limit counts, however long the loop still turns."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.stopping()
    heard(manager)
    notifier.watchdog()

    assert heard(manager) == []


def test_a_line_break_in_a_status_begins_no_assignment(manager):
    """Text from elsewhere must not become another message."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.status("one\nMAINPID=1\r\ntwo")

    assert heard(manager) == ["STATUS=one MAINPID=1 two"]


def test_an_abstract_socket():
    """systemd writes the leading null of an abstract address as @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the kernel gives an abstract address
        listening.setblocking(False)
        address = listening.getsockname()
        SystemdNotifier({"NOTIFY_SOCKET": "@" + address[1:].decode()}).status("here")

        assert heard(listening) == ["STATUS=here"]


def test_without_systemd_every_call_does_nothing(monkeypatch):
    """No socket is even opened where nobody listens."""
    monkeypatch.setattr(socket, "socket", None)
    notifier = SystemdNotifier({})
    notifier.ready("x")
    notifier.watchdog()
    notifier.stopping()

    assert notifier.watchdog_interval_seconds() is None


def test_a_manager_that_is_gone_or_full_holds_nobody_up(tmp_path, manager):
    """A message that cannot be sent is dropped at once."""
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).status("x")
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(2000):
        notifier.watchdog()

    assert 0 < len(heard(manager)) < 4000


@pytest.mark.parametrize(
    ("expected", "environ"),
    [
        (10.0, {"WATCHDOG_USEC": "30000000"}),
        (10.0, {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}),
        (None, {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}),
        (None, {"WATCHDOG_USEC": "0"}),
        (None, {"WATCHDOG_USEC": "soon"}),
        (None, {}),
    ],
)
def test_the_interval_is_a_third_of_the_limit(expected, environ):
    """Two keep-alives may be lost; another process's watchdog is none of ours."""
    assert expected == SystemdNotifier(environ).watchdog_interval_seconds()
