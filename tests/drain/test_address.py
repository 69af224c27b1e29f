"""The address of the Spark process, as the daemon's settings and the Spark process read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drain.address import SOCKET_PATH_BYTES, Address
from drain.service.service import main
from headgate.errors import ConfigError


@pytest.mark.parametrize(
    "text", ["", "http://x", "tcp:127.0.0.1", "tcp:127.0.0.1:0", "tcp:127.0.0.1:99999", "tcp:h:x", "tcp:h:²"]
)
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="with a port from 1 to 65535"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "'unix:': write unix:/absolute/path"),
        ("s", "'unix:s': write unix:/absolute/path"),
        ("/", "'unix:/': write unix:/absolute/path"),
        ("/" + "x" * SOCKET_PATH_BYTES, "the path has 108 bytes, but the path of a socket may have 107"),
    ],
    ids=["empty", "relative", "root", "too long"],
)
def test_the_path_of_a_socket_is_absolute_and_short(path: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Address.parse(f"unix:{path}")

    assert str(refused.value).startswith(problem)


def test_an_address_is_printed_as_it_is_written() -> None:
    longest = Path("/" + "x" * (SOCKET_PATH_BYTES - 1))

    assert Address.parse(f"unix:{longest}") == Address(path=longest)
    assert str(Address.parse("tcp:127.0.0.1:65535")) == "tcp:127.0.0.1:65535"
    assert str(Address.parse("tcp:127.0.0.1:0", any_port=True)) == "tcp:127.0.0.1:0"


def test_the_spark_process_names_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ledger", "file:///x", "--listen", "unix:s"]) == 2

    assert capsys.readouterr().err == "error: --listen: 'unix:s': write unix:/absolute/path\n"
