"""The reference of log events: level, name and data from the calls that log them, and their meaning.

The meanings are in ``log_meanings.toml``. An event without one, and one that no code logs, are errors.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sitebuild.references import UndocumentedError

PACKAGES = ("controller", "coordinator", "drain", "headgate", "metrics", "shard", "web")
LEVELS = ("debug", "info", "warning", "error", "critical")
MEANINGS = Path(__file__).with_name("log_meanings.toml")
_EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
_MAY_LOG = re.compile(rf"\.({'|'.join(LEVELS)})\(")
"""In one of five modules; the others need not be parsed."""


@dataclass(slots=True)
class LogEvent:
    """One event, over all calls that log it."""

    levels: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)


def log_meanings() -> dict[str, str]:
    return tomllib.loads(MEANINGS.read_text())


def log_reference(events: Mapping[str, LogEvent], meanings: Mapping[str, str]) -> str:
    """Return ``events`` as Markdown. Raises UndocumentedError."""
    if without := sorted(events.keys() - meanings.keys()):
        raise UndocumentedError(f"{MEANINGS.name} has no meaning of the log events {', '.join(without)}")
    if unknown := sorted(meanings.keys() - events.keys()):
        raise UndocumentedError(f"{MEANINGS.name} has log events that no code logs: {', '.join(unknown)}")
    lines = []
    for name, event in sorted(events.items()):
        levels = ", ".join(level for level in LEVELS if level in event.levels)
        data = [f"data {', '.join(f'`{each}`' for each in event.fields)}"] if event.fields else []
        facts = " · ".join([levels, f"by {', '.join(sorted(event.packages))}", *data])
        lines += [f"## `{name}`", "", f"*{facts}*", "", meanings[name], ""]
    return "\n".join(lines)


def log_events(root: Path) -> dict[str, LogEvent]:
    """Return event name → what is logged with it. Raises UndocumentedError for a name that is no constant."""
    found: dict[str, LogEvent] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for name, level, fields in _logged(path):
                event = found.setdefault(name, LogEvent())
                event.levels.add(level)
                event.fields.update(dict.fromkeys(fields))
                event.packages.add(package)
    return found


def _logged(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (event, level, fields) of each call of a logger's method."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if _MAY_LOG.search(text) else ():
        match node:
            case ast.Call(
                func=ast.Attribute(attr=level), args=[ast.Constant(value=str(name)), *_], keywords=fields
            ) if level in LEVELS and _EVENT.fullmatch(name):
                yield name, level, [field.arg for field in fields if field.arg is not None]
            case ast.Call(
                func=ast.Attribute(attr=level, value=ast.Name(id="log") | ast.Attribute(attr="_log" | "log"))
            ) if level in LEVELS:
                raise UndocumentedError(f"{path}:{node.lineno}: the name of a log event is no constant")
