"""Every command in a document, an example or a unit exists, with the options that it is given.

A complete command line, in a block of a document or the ExecStart of a unit, is parsed by the real command. A name
between backticks may leave out arguments, so only its command and its options are checked.
"""

import functools
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headgate.cli.main import main
from tests.support.documents.markdown import FENCE, ROOT, blocks
from tests.support.documents.program_help import help_of

PROGRAMS = ("headgate", "make", "python", "pytest")
SEPARATORS = {"|", "||", "&&", ";", "&", "(", ")", ">"}
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".md", ".toml")),
    *sorted(
        path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".md", ".toml", ".conf", ".service", ".yml")
    ),
]


@dataclass(frozen=True)
class Documented:
    """One command where it is written."""

    place: str
    words: tuple[str, ...]
    complete: bool

    def __str__(self) -> str:
        return f"{self.place}: {shlex.join(self.words)}"


def commands_of(path: Path) -> Iterator[Documented]:
    text, place = path.read_text(), str(path.relative_to(ROOT))
    prose = FENCE.sub("", text)
    lines = [
        *(line for block in blocks(path) if block.language in ("", "bash") for line in block.text.splitlines()),
        *(command for block in blocks(path) if block.language == "console" for command, _ in block.commands()),
        *re.findall(r"^(?:#)? {4,}(\S.*)$", prose, re.MULTILINE),
        *(re.findall(r"^ExecStart=(.*(?:\\\n.*)*)$", prose, re.MULTILINE) if path.suffix == ".service" else ()),
    ]
    for line in lines:
        for words in simple_commands(line.replace("\\\n", " ")):
            yield Documented(place, words, complete=True)
    for span in re.findall(r"`([^`]+)`", prose):
        # The lines of a comment that quotes a command begin with the comment's sign.
        words_of_span = [word for word in span.split() if word != "#"]
        for words in simple_commands(" ".join(words_of_span)) if words_of_span[0] in PROGRAMS else ():
            yield Documented(place, words, complete=False)


def simple_commands(line: str) -> list[tuple[str, ...]]:
    """Return the commands of a shell line that start one of our programs, without folder and environment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word in SEPARATORS:
                found.append([])
            else:
                found[-1].append(word)
    except ValueError:  # prose with an apostrophe
        return []
    commands = []
    for words in found:
        while words and re.fullmatch(r"\w+=.*", words[0]):
            del words[0]
        if len(words) > 1 and words[0].rpartition("/")[2] in PROGRAMS:
            commands.append((words[0].rpartition("/")[2], *words[1:]))
    return commands


def options(words: Iterable[str]) -> set[str]:
    return {word.partition("=")[0].strip("[],") for word in words if word.lstrip("[").startswith("--")}


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


@functools.cache
def documented_commands() -> list[Documented]:
    return sorted({*(command for path in DOCUMENTS for command in commands_of(path)), *epilogs(main)}, key=str)


def test_every_documented_command_exists_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    wrong = []
    for command in documented_commands():
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
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert {word for word in words if "=" not in word} <= targets
    elif program == "pytest" or words[:2] == ["-m", "pytest"]:
        check_pytest(words, config)
    elif words[0] == "-m":
        check_script(("-m", words[1]), words[2:])
    elif words[0].endswith(".py") and "/" in words[0]:  # others are in blocks of the same document
        check_script((words[0],), words[1:])


def test_the_documents_name_the_commands_that_a_user_meets_first() -> None:
    """So that a change of the documents' form does not empty the test above."""
    found = {(command.place, *command.words[:3]) for command in documented_commands() if command.complete}

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
