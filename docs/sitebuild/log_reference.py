"""The reference of log events, from the calls that log them: level, name, and the data beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("controller", "coordinator", "drain", "headgate", "metrics")
LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(slots=True)
class LogEvent:
    """One event, over all calls that log it."""

    levels: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)


def log_reference(root: Path) -> str:
    """Return the events of all packages below ``root`` as a Markdown table."""
    lines = ["| event | level | data | by |", "|---|---|---|---|"]
    for name, event in sorted(log_events(root).items()):
        levels = ", ".join(level for level in LEVELS if level in event.levels)
        data = ", ".join(f"`{each}`" for each in event.fields)
        lines.append(f"| `{name}` | {levels} | {data} | {', '.join(sorted(event.packages))} |")
    return "\n".join(lines)


def log_events(root: Path) -> dict[str, LogEvent]:
    """Return event name → what is logged with it."""
    found: dict[str, LogEvent] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for name, level, fields in _calls(ast.parse(path.read_text())):
                event = found.setdefault(name, LogEvent())
                event.levels.add(level)
                event.fields.update(dict.fromkeys(fields))
                event.packages.add(package)
    return found


def _calls(tree: ast.AST) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (event, level, fields) of each call of a logger's method with a dotted name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(name)), *_]) if (
                level in LEVELS and "." in name and " " not in name
            ):
                yield name, level, [keyword.arg for keyword in node.keywords if keyword.arg is not None]
