"""The commands that documents, examples and units contain.

A complete command line is in a block of a document or the ExecStart of a unit. A name between backticks may leave out
arguments.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.documents.code_blocks import FENCE, ROOT, blocks

PROGRAMS = ("headgate", "make", "python", "pytest")
SEPARATORS = {"|", "||", "&&", ";", "&", "(", ")", ">"}


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
