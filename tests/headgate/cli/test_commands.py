"""Which commands there are, with the distribution of the daemon and without it."""

import sys

import pytest

from tests.headgate.cli.conftest import Invoke


@pytest.fixture
def without_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the distribution of the daemon."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "controller"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "controller", None)


@pytest.mark.parametrize(
    ("command", "wanted"), [("run", "./daemon"), ("up", "./daemon[up]"), ("check-config", "./daemon")]
)
@pytest.mark.usefixtures("without_daemon")
def test_without_the_daemon_its_commands_say_what_to_install(command: str, wanted: str, invoke: Invoke) -> None:
    result = invoke(command, "--config", "headgate.toml")

    assert 1 == result.exit_code
    clone = f"in a clone of headgate: python3 -m pip install . '{wanted}'"
    assert f"headgate: '{command}' is a command of the daemon: {clone}\n" == result.stderr


@pytest.mark.usefixtures("without_daemon")
def test_without_the_daemon_the_help_names_its_distribution(invoke: Invoke) -> None:
    result = invoke("--help")

    assert 0 == result.exit_code
    assert "Commands of a daemon (install the distribution headgate-daemon):" in result.stdout


def test_a_command_whose_library_is_missing_says_what_to_install(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "controller.cli.up", None)

    result = invoke("up")

    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))
    assert result.stderr.endswith("python3 -m pip install . './daemon[up]'\n")
