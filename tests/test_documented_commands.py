"""Every command in a document, an example or a unit exists, with the options that it is given.

A complete command line, in a block of a document or the ExecStart of a unit, is parsed by the real command. A name
between backticks may leave out arguments, so only its command and its options are checked.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headgate.cli.main import main
from tests.support.documents.commands import Documented, commands_of, options, simple_commands
from tests.support.documents.program_help import help_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".md", ".toml")),
    *sorted(
        path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".md", ".toml", ".conf", ".service", ".yml")
    ),
]


def epilogs(command: click.Command, path: str = "headgate") -> Iterator[Documented]:
    """Return the examples in the help of ``command`` and of the commands below it."""
    for line in (command.epilog or "").splitlines():
        for words in simple_commands(line):
            yield Documented(f"{path} --help", words, complete=True)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            yield from epilogs(found, f"{path} {name}")


COMMANDS = sorted({*(command for path in DOCUMENTS for command in commands_of(path)), *epilogs(main)}, key=str)


def test_every_documented_command_exists_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    wrong = []
    for command in COMMANDS:
        try:
            check(command, pytestconfig)
        except (AssertionError, ValueError) as error:
            wrong.append(f"{command}: {error}")

    assert [] == wrong


def check(command: Documented, config: pytest.Config) -> None:
    program, *words = (word for word in command.words if word != "-P")
    for word in words:  # the input files of a user
        if re.fullmatch(r"[\w-]+\.((nd)?json|toml)", word):
            Path(word).touch()
    if program == "headgate":
        check_headgate(words, command.complete)
    elif program == "make":
        check_make(words)
    elif program == "pytest" or words[:2] == ["-m", "pytest"]:
        check_pytest(words, config)
    elif words[0] == "-m":
        check_script(("-m", words[1]), words[2:])
    elif words[0].endswith(".py") and "/" in words[0]:  # others are in blocks of the same document
        check_script((words[0],), words[1:])


def test_the_documents_name_the_commands_that_a_user_meets_first() -> None:
    """So that a change of the documents' form does not empty the test above."""
    found = {(command.place, *command.words[:3]) for command in COMMANDS if command.complete}

    assert {
        ("README.md", "headgate", "topic", "create"),
        ("README.md", "make", "demo"),
        ("docs/clients.md", "headgate", "topic", "create"),
        ("examples/kinesis/README.md", "headgate", "topic", "describe"),
        ("examples/kinesis/README.md", "python", "examples/kinesis/consumer.py", "orders"),
        ("headgate subscription seek --help", "headgate", "subscription", "seek"),
        ("deploy/headgate.service", "headgate", "run", "--config"),
    } <= found


def check_headgate(words: list[str], complete: bool) -> None:
    """Parse the command line, and run nothing."""
    if words[:1] == ["snapshot"] or (words[:1] == ["drain"] and words[1:2] not in ([], ["--help"])):
        # Programs of their own, which parse their options themselves.
        command = tuple(itertools.takewhile(lambda word: not word.startswith("-"), words))
        assert options(words) <= set(re.findall(r"--[\w-]+", help_of(("-m", "headgate"), command)))
        return

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(click.Command, "invoke", lambda *_: None)  # of groups, this runs only their own callback
        found = CliRunner().invoke(main, words, prog_name="headgate")
    if complete:
        assert (0, "") == (found.exit_code, found.stderr)
    else:
        assert not re.search("No such|unexpected extra", found.stderr), found.stderr


def check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {word for word in words if "=" not in word} <= targets


def check_pytest(words: list[str], config: pytest.Config) -> None:
    assert [] == [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()]
    for option in options(words):
        config.getoption(option)  # raises ValueError for an unknown one


def check_script(script: tuple[str, ...], words: list[str]) -> None:
    """Look up the options in the help of the program, and of its subcommand if it has one."""
    names = tuple(word for word in words if not word.startswith("-"))
    text = help_of(script)
    subcommands = re.search(r"\{([\w,-]+)\}", text)
    if subcommands is not None and len(names) > 1 and "..." in text:
        assert names[1] in subcommands[1].split(",")
        text += help_of(script, names[:2])
    assert options(words) <= set(re.findall(r"--[\w-]+", text))
    if script == ("-m", "bench"):
        assert {name for name in names if re.fullmatch("[a-z_]+", name)} <= {
            path.stem for path in (ROOT / "bench").glob("*/*.py")
        }
