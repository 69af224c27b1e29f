"""Read documents: sections, tables and fenced examples; and code blocks, with how real output is compared with theirs.

A ```` ```console ```` block contains lines that begin with ``$ ``, each followed by what the command prints on standard
output and standard error. Documents show real output. What differs from run to run (times, rates, ports, folders) is
replaced on both sides before they are compared, and ``...`` matches the rest. CONTRIBUTING.md describes the notation.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
"""Within a list, a block is indented like the text of its item."""
RUNNABLE = ("console", "bash", "python")
_VARYING = (
    (re.compile(r"/[\w./-]*(?=/headgate-data)"), "FOLDER"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"https?://"), "SCHEME://"),
    (re.compile(r"Python 3\.\d+\.\d+"), "PYTHON"),
    (re.compile(r"\((mosquitto|amqtt)\)"), "BROKER"),
    (re.compile(r'"timestamp":\d+'), '"timestamp":TIME'),
    (re.compile(r"time left unknown|(about|less than) [^.]*? left at [\d.]+ records/s"), "TIME LEFT"),
    (
        re.compile(r"(The next drain check runs in [^.]*; progress brings it forward|A drain check is running)\."),
        "CHECK",
    ),
    (re.compile(r"[^\S\n]+$", re.MULTILINE), ""),
)


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str
    attributes: Mapping[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether a test runs it."""
        return self.language in RUNNABLE and "no-run" not in self.attributes

    def commands(self) -> list[tuple[str, str]]:
        """Return the (command, documented output) pairs of a console block."""
        parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", self.text, flags=re.MULTILINE)
        assert parts[0] == "", f"a console block begins with a command: {self.text}"
        return list(zip(parts[1::2], parts[2::2], strict=True))


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    name = str(document.relative_to(ROOT)) if document.is_relative_to(ROOT) else document.name
    found = []
    for fence in FENCE.finditer(text):
        if fence["info"].startswith("{"):  # a directive of the site
            continue
        language, *attributes = shlex.split(fence["info"]) or [""]
        content = re.sub(rf"^{fence['indent']}", "", fence["text"], flags=re.MULTILINE)
        named = dict(attribute.split("=", 1) for attribute in attributes)
        found.append(Block(name, text.count("\n", 0, fence.start()) + 1, language, named, content))
    return found


def comparable(output: str) -> str:
    """Return ``output`` without what differs from run to run."""
    for pattern, replacement in _VARYING:
        output = pattern.sub(replacement, output)
    return output


def matches(documented: str, output: str) -> bool:
    """Return whether a command printed what is documented. ``...`` is any text of a line, and a line of it any lines."""
    parts = []
    for line in comparable(documented).splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(".*".join(re.escape(part) for part in line.split("...")) + r"\n")
    return re.fullmatch("".join(parts), comparable(output)) is not None


@dataclass
class Section:
    """One heading and the text up to the next heading of any level."""

    heading: str
    lines: list[str] = field(default_factory=list)

    def table(self) -> list[list[str]]:
        """Return the rows of the section's only table, without its head; no rows if it has no table."""
        rows = [
            [cell.strip() for cell in line.strip().strip("|").split("|")] for line in self.lines if line.startswith("|")
        ]
        assert sum(set(row) == {"---"} for row in rows) <= 1, f"{self.heading}: more than one table in the section"
        return rows[2:]

    def fenced(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```$", "\n".join(self.lines), re.MULTILINE | re.DOTALL)


def sections(name: str) -> dict[str, Section]:
    found = [Section("")]
    in_fence = False
    for line in (DOCS / name).read_text().splitlines():
        in_fence ^= line.startswith("```")
        if line.startswith("#") and not in_fence:
            found.append(Section(line.lstrip("#").strip()))
        else:
            found[-1].lines.append(line)
    by_heading = {section.heading: section for section in found}
    assert len(by_heading) == len(found), "a heading occurs twice"
    return by_heading


def ticked(cell: str) -> list[str]:
    """Return the texts between backticks in a cell, in order."""
    return re.findall(r"`([^`]*)`", cell)
