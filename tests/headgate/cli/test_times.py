"""Every command that takes a time takes the same texts, refuses the same ones with the same words, and helps alike."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result

from headgate.cli.main import main
from headgate.model.time_text import EXAMPLES, TIME_HELP
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, segment, topic
from tests.support.source_folders import ROOT

AT_MS = 1_769_882_400_000
COMMANDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("consume", "--from"): ("consume", "orders", "billing", "--exit-when-caught-up", "--from"),
    ("events", "--since"): ("events", "--since"),
    ("produce", "--timestamp-field"): ("produce", "orders", "--key", "k", "--timestamp-field", "at"),
    ("read", "--from"): ("read", "orders", "--from"),
    ("subscription create", "--from"): ("subscription", "create", "orders", "billing", "--from"),
    ("subscription seek", "--to"): ("subscription", "seek", "orders", "billing", "--yes", "--to"),
}
TIMES = ("2026-01-31T18:00:00Z", "2026-01-31T19:00:00.000+01:00", "1769882400s", "1769882400000ms", "1.7698824e15us")
REFUSED = {
    "noon": "'noon' is not a time",
    "2026-01-31T18:00:00": "'2026-01-31T18:00:00' has no time zone (Z for UTC, or an offset such as +01:00)",
    "1769882400ms": "'1769882400ms' is not between 1990 and 2100 in ms (in another unit?)",
    "1769882400000000s": "'1769882400000000s' is not between 1990 and 2100 in s (in another unit?)",
    "1970-01-01T00:00:00Z": "'1970-01-01T00:00:00Z' is not between 1990 and 2100",
}

Run = Callable[[str], Result]
"""Runs a command with the text of a time."""


@pytest.fixture(params=COMMANDS, ids=" ".join)
def command(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A command, and its option that takes a time."""
    return request.param


@pytest.fixture
def run(command: tuple[str, str], invoke: Invoke, cluster: FakeCluster, tmp_path: Path) -> Run:
    cluster.topics["orders"] = topic("orders", segment(0, 0, 0xFFFF))
    words = COMMANDS[command]

    def run_with(text: str) -> Result:
        if command[0] != "produce":
            return invoke(*words, text)
        (tmp_path / "events").write_text(json.dumps({"at": text}))
        return invoke(*words, str(tmp_path / "events"))

    return run_with


def options_that_take_a_time(group: click.Group, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the options whose help says what a time is."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from options_that_take_a_time(found, f"{prefix}{name} ")
        elif found is not None:
            for option in found.params:
                if TIME_HELP in (getattr(option, "help", None) or ""):
                    yield f"{prefix}{name}", option.opts[0]


def test_the_table_has_every_option_that_takes_a_time():
    assert set(COMMANDS) == set(options_that_take_a_time(main))


def test_one_function_reads_times():
    """Certificates have a format of their own."""
    readers = {
        path.relative_to(ROOT).as_posix()
        for folder in ("headgate", "controller", "coordinator", "drain", "metrics")
        for path in (ROOT / folder).rglob("*.py")
        if {"fromisoformat", "strptime"} & set(re.findall(r"\w+", path.read_text()))
    }

    assert {"headgate/model/time_text.py", "headgate/files/tls.py"} == readers


def test_each_text_is_the_same_time_to_every_command(command: tuple[str, str], run: Run, stored: FakeCluster):
    for text in TIMES:
        stored.calls.clear()
        stored.timestamps.clear()
        result = run(text)

        assert result.exit_code == 0, result.stderr
        if command[0] == "read":
            assert ["0.1", "0.2"] == [str(json.loads(line)["value"]) for line in result.stdout.splitlines()]
        elif command[0] == "events":
            assert result.stdout == "", "the topic was created before"
        elif command[0] == "produce":
            assert [AT_MS] == stored.timestamps
        else:
            assert [[(0, AT_MS)]] == [call.positions for call in stored.calls]


@pytest.mark.parametrize(("text", "problem"), REFUSED.items())
def test_each_command_refuses_the_same_texts_with_the_same_words(
    text: str, problem: str, command: tuple[str, str], run: Run, stored: FakeCluster
):
    result = run(text)

    assert result.exit_code == (1 if command[0] == "produce" else 2)
    assert f"{problem}; write for example {EXAMPLES}, or " in result.stderr
    assert ([], []) == (stored.calls, stored.sent)
