"""Documented terminal sessions: commands with their output, and how a real output is compared with the printed one.

A ```` ```console ```` block contains lines that begin with ``$ ``, each followed by what the command prints on standard
output and standard error. Documents show real output. What differs from run to run (times, rates, ports, folders) is
replaced on both sides before they are compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(console|text|python)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
    """One fenced block of a document."""

    language: str
    text: str

    def commands(self) -> list[tuple[str, str]]:
        """Return the (command, documented output) pairs of a console block."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        assert parts[0] == "", f"a console block begins with a command: {self.text}"
        return list(zip(parts[1::2], parts[2::2], strict=True))


def blocks(document: Path) -> list[Block]:
    """Return the console, text and python blocks of a document, in order."""
    return [Block(language, text) for language, text in _FENCE.findall(document.read_text())]


def comparable(output: str) -> str:
    """Return ``output`` without what differs from run to run."""
    for pattern, replacement in _VARYING:
        output = pattern.sub(replacement, output)
    return output
