"""What `headgate doctor` found, and how it is printed. Pure.

A finding is ``ok``, a ``warning`` (it works, but not as it should) or a ``problem``. Every finding that is not ok has a
remedy in one line.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final, Literal

Level = Literal["ok", "warning", "problem"]
WIDTH: Final = 80
_INDENT: Final = " " * 9


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    text: str
    remedy: str = ""
    """What to do; empty if it is ok."""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "warning", text, remedy)


def problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "problem", text, remedy)


def has_problem(findings: Iterable[Finding]) -> bool:
    return any(each.level == "problem" for each in findings)


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    for each in findings:
        lines += wrapped(f"{each.level:<9}{each.check}: {each.text}", _INDENT)
        if each.remedy:
            lines += wrapped(f"{_INDENT}→ {each.remedy}", f"{_INDENT}  ")
    counts = {level: sum(each.level == level for each in findings) for level in ("ok", "warning", "problem")}
    summary = f"{counts['ok']} ok, {plural(counts['warning'], 'warning')}, {plural(counts['problem'], 'problem')}"
    return [*lines, "", summary]


def wrapped(text: str, indent: str) -> list[str]:
    """Return ``text`` in lines of `WIDTH`. An address is not broken."""
    return wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
