"""The options of every command that speaks to a cluster: `--config` and `--timeout`."""

from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from headgate.cli.commands import COMMANDS
from headgate.cli.context import CommandContext
from headgate.cli.main import main


def leaves(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    return [leaf for inner in command.commands.values() for leaf in leaves(inner)]


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"verify-history"}))  # That one reads files only.
def test_every_command_of_a_cluster_has_both_options(name):
    command = main.get_command(click.Context(main), name)
    for leaf in leaves(command):
        assert {"--config", "--timeout"} <= {option for each in leaf.params for option in each.opts}, leaf.name


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "1e300"])
def test_a_timeout_that_is_no_duration_is_wrong_usage(given, invoke):
    result = invoke("topic", "list", "--timeout", given)

    assert result.exit_code == 2
    assert f"seconds={float(given)!r}: use 0.001 to 31536000 seconds; see: headgate topic list --help" in result.stderr


def client_file(folder: Path, more: str = "") -> Path:
    file = folder / "client.toml"
    file.write_text(f'cluster = "c"\nbroker_host = "h"\nbroker_port = 1\nledger_url = "{folder.as_uri()}"\n{more}')
    return file


def test_the_timeout_bounds_the_broker_and_each_answer(tmp_path):
    context = CommandContext(client_file(tmp_path))
    assert (context.client_config().broker_timeout_seconds, context.wait_seconds()) == (4.0, 30.0)

    configured = CommandContext(client_file(tmp_path, "broker_timeout_seconds = 9\n"))
    assert (configured.client_config().broker_timeout_seconds, configured.wait_seconds()) == (9.0, 30.0)

    configured.timeout_seconds = 2.0
    assert (configured.client_config().broker_timeout_seconds, configured.wait_seconds()) == (2.0, 2.0)


def test_every_client_of_a_command_has_the_timeout(tmp_path):
    context, consumed = CommandContext(client_file(tmp_path), timeout_seconds=2.5), {"topic": "t", "subscription": "s"}
    opened = context.open_admin(), context.open_producer(name=None), context.open_consumer(**consumed)

    assert [each._lease.timeout_seconds for each in opened] == [2.5] * 3


@pytest.mark.parametrize(("asks", "sees"), [(True, True), (True, False), (False, True)])
def test_a_person_is_asked_who_sees_the_question_and_can_answer(asks, sees, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: asks))
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: sees))

    assert CommandContext().can_ask() == (asks and sees)


def test_clusters_of_one_name_with_another_ledger_are_not_the_same(tmp_path):
    contexts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        contexts.append(CommandContext(client_file(tmp_path / name)))

    assert [True, False] == [contexts[0].is_same_cluster(each) for each in contexts]
