"""The error of a client whose broker cannot be reached, over a real socket."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate import Admin, Consumer, ExternalConsumer, NoLeaderError, Producer, load_client_config
from headgate.cli.context import CommandContext
from headgate.cli.main import main

TIMEOUT_SECONDS = 0.2


@pytest.fixture
def port() -> int:
    """A port on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return int(closed.getsockname()[1])


@pytest.fixture
def file(port: int, tmp_path: Path) -> Path:
    path = tmp_path / "client.toml"
    path.write_text(
        f'cluster = "c"\nbroker_host = "127.0.0.1"\nbroker_port = {port}\nledger_url = "{tmp_path.as_uri()}"\n'
    )
    return path


@pytest.mark.parametrize("kind", [Admin, Producer, Consumer, ExternalConsumer])
async def test_the_error_names_the_broker_and_the_file_that_says_so(kind: type, port: int, file: Path) -> None:
    options: dict[str, object] = {"connect_timeout_seconds": TIMEOUT_SECONDS}
    if kind is Admin:
        options = {"timeout_seconds": TIMEOUT_SECONDS}
    elif kind is not Producer:
        options |= {"topic": "orders", "subscription": "billing"}

    with pytest.raises(NoLeaderError) as error:
        async with kind(load_client_config(file), **options):
            pass

    assert str(error.value) in {
        f"cannot reach the broker at 127.0.0.1:{port} (from {file}): {reason} (waited 0.2 s); is it running, and is that its address?"
        for reason in ("[Errno 111] Connection refused", "no connection yet")
    }


def test_a_command_waits_for_a_broker_for_seconds_or_as_configured(port: int, file: Path) -> None:
    """Not for the half minute that a change of leader may take."""
    assert CommandContext(file).client_config().broker_timeout_seconds == 4.0

    with file.open("a") as config:
        config.write("broker_timeout_seconds = 0.3\n")
    result = CliRunner().invoke(main, ["--config", str(file), "topic", "list"], prog_name="headgate")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"headgate: cannot reach the broker at 127.0.0.1:{port} (from {file}): [Errno 111] Connection refused "
        "(waited 0.3 s); is it running, and is that its address?\n"
    )
