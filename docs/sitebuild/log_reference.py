"""The reference of log events: level, name and data from the calls that log them, and their meaning.

The meanings are in ``log_meanings.toml``. An event without one, and one that no code logs, are errors.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from sitebuild.settings_reference import UndocumentedError

PACKAGES = ("controller", "coordinator", "drain", "headgate", "metrics", "shard", "web")
LEVELS = ("debug", "info", "warning", "error", "critical")
MEANINGS = Path(__file__).with_name("log_meanings.toml")
_EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
_MAY_LOG = re.compile(rf'\b_?log\.|"{_EVENT.pattern}"')
"""In one of five modules; the others need not be parsed."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class LogEvent:
    """One event, over all calls that log it."""

    levels: set[str] = field(default_factory=set)
    fields: dict[str, None] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Module:
    """What a module calls, and its functions."""

    calls: Sequence[ast.Call]
    functions: Sequence[_Function]

    @classmethod
    def parsed(cls, text: str) -> _Module:
        nodes = list(ast.walk(ast.parse(text)))
        return cls(
            [node for node in nodes if isinstance(node, ast.Call)],
            [node for node in nodes if isinstance(node, _Function)],
        )


def log_meanings() -> dict[str, str]:
    """Return event name → what it means."""
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
    """Return event name → what is logged with it."""
    modules = [
        (package, _Module.parsed(text))
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if _MAY_LOG.search(text := path.read_text())
    ]
    passed = _passed(module.calls for _, module in modules)
    found: dict[str, LogEvent] = {}
    for package, module in modules:
        for name, level, fields in _events(module, passed):
            event = found.setdefault(name, LogEvent())
            event.levels.add(level)
            event.fields.update(dict.fromkeys(fields))
            event.packages.add(package)
    return found


def _passed(calls: Iterable[Sequence[ast.Call]]) -> dict[str, set[str]]:
    """Return function → the names of events that callers pass to it, also as an attribute without its underscore."""
    found: dict[str, set[str]] = {}
    for node in chain.from_iterable(calls):
        if names := _constants(node.args):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found.setdefault(name.lstrip("_"), set()).update(names)
    return found


def _events(module: _Module, passed: Mapping[str, set[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (event, level, fields) of each call of a logger's method with an event.

    Raises UndocumentedError for a name that is made at run time.
    """
    for node in module.calls:
        match node:
            case ast.Call(
                func=ast.Attribute(attr=level) as method, args=[ast.Constant() | ast.Name() as first, *_]
            ) if level in LEVELS and (_constants([first]) or _receiver(method) == "log"):
                fields = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
                names = _names(first, (each for each in module.functions if node in ast.walk(each)), passed)
                if not names:
                    raise UndocumentedError(f"line {node.lineno}: the name of the log event is unknown")
                for name in names:
                    yield name, level, fields


def _names(first: ast.Constant | ast.Name, inside: Iterable[_Function], passed: Mapping[str, set[str]]) -> set[str]:
    """Return the events that the first argument may be: a constant, a variable of them, or an argument of callers."""
    if isinstance(first, ast.Constant):
        return _constants([first])
    found = set()
    for function in inside:
        assigned = [node.value for node in ast.walk(function) if isinstance(node, ast.Assign) and _sets(node, first.id)]
        found |= _constants(assigned) or passed.get(function.name.lstrip("_"), set())
    return found


def _sets(assignment: ast.Assign, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in assignment.targets)


def _receiver(method: ast.Attribute) -> str:
    return (getattr(method.value, "attr", "") or getattr(method.value, "id", "")).lstrip("_")


def _constants(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of events in expressions."""
    values = [each.value for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return {value for value in values if isinstance(value, str) and _EVENT.fullmatch(value)}
