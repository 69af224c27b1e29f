"""Which commands there are, with the distribution of the daemon and without it."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from headgate.cli.commands import GROUP
from tests.headgate.cli.conftest import Invoke

Install = Callable[[str | None], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Register only the table of commands that ``value`` names; None: no distribution registers any."""

    def install(value: str | None) -> None:
        found = [] if value is None else [EntryPoint(name="other", value=value, group=GROUP)]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: found if group == GROUP else [])

    return install


OTHER = {"migrate": ("tests.headgate.cli.test_commands", "Move a topic."), "topic": ("nonsense", "Another topic.")}
"""A table that another distribution registers."""


def test_the_help_lists_registered_commands_apart(invoke: Invoke, installed: Install) -> None:
    installed("tests.headgate.cli.test_commands:OTHER")

    clients, _, registered = invoke("--help").stdout.partition("Commands of a daemon:\n")

    assert "migrate" not in clients
    assert "  migrate  Move a topic.\n" in registered


def test_a_registered_command_does_not_replace_one_of_the_client(invoke: Invoke, installed: Install) -> None:
    installed("tests.headgate.cli.test_commands:OTHER")

    assert "Another topic." not in invoke("--help").stdout
    assert 0 == invoke("topic", "list").exit_code


@pytest.mark.parametrize(
    ("command", "wanted"),
    [("run", "'headgate-daemon'"), ("up", "'headgate-daemon[up]'"), ("check-config", "'headgate-daemon'")],
)
def test_without_the_daemon_its_commands_say_what_to_install(
    command: str, wanted: str, invoke: Invoke, installed: Install
) -> None:
    installed(None)

    result = invoke(command, "--config", "headgate.toml")

    assert 1 == result.exit_code
    assert f"headgate: '{command}' is a command of the daemon: python3 -m pip install {wanted}\n" == result.stderr


def test_without_the_daemon_the_help_names_its_distribution(invoke: Invoke, installed: Install) -> None:
    installed(None)

    result = invoke("--help")

    assert 0 == result.exit_code
    assert "headgate-daemon" in result.stdout
    assert "Commands of a daemon" not in result.stdout


@pytest.mark.parametrize("words", [("--help",), ("run",)])
def test_a_broken_installation_is_one_line(words: tuple[str, ...], invoke: Invoke, installed: Install) -> None:
    installed("no_such_package.commands:COMMANDS")

    result = invoke(*words)

    assert 1 == result.exit_code
    assert result.stderr.startswith("headgate: the commands of no_such_package.commands:COMMANDS cannot be imported")
    assert 1 == result.stderr.count("\n")


def test_a_command_whose_library_is_missing_says_what_to_install(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "controller.cli.up", None)

    result = invoke("up")

    assert 1 == result.exit_code
    assert result.stderr.endswith("is a command of the daemon: python3 -m pip install 'headgate-daemon[up]'\n")
    assert 1 == result.stderr.count("\n")
