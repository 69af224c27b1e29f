"""The references of settings, exit codes, metrics and log events, from the code that uses them.

The string below an attribute of a class documents it. Python keeps these in the source only. An entry of a setting says
type, limits, unit, default and meaning, and what a reload does with a change. Of a log event, level, name and data come
from the calls that log it, and the meaning from ``log_meanings.toml``. An event without one, and one that no code logs,
are errors.
"""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_type_hints

import msgspec
from msgspec import inspect as types
from prometheus_client import CollectorRegistry, Metric

from controller.settings.load import Settings
from controller.settings.reload import AT_RUN_TIME, FILES_READ_AGAIN
from headgate.cli.exit_codes import ExitCode
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.settings.config import ClientConfig
from metrics.declared import Values
from metrics.instruments import Instruments
from metrics.metric_factory import OTHER

NOT_IN_THE_FILE = {"file"}
"""Fields of `ClientConfig` that no file contains."""
UNITS = {
    "_records_per_second": "records per second",
    "_bytes_per_second": "bytes per second",
    "_seconds": "seconds",
    "_ms": "milliseconds",
    "_bytes": "bytes",
}
"""End of a name → unit; the longest first. Other numbers are counts or ratios."""
LONGEST_IN_DIGITS = 10**12
LONGEST_POWER_IN_DIGITS = 10**9
"""Limits from these on are written as powers."""
PACKAGES = ("controller", "coordinator", "drain", "headgate", "metrics", "shard", "web")
LEVELS = ("debug", "info", "warning", "error", "critical")
_EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
_MAY_LOG = re.compile(rf"\.({'|'.join(LEVELS)})\(")
"""In one of five modules; the others need not be parsed."""


def attribute_docs(owner: type) -> dict[str, str]:
    """Return attribute → text, those of bases first. An attribute without a text is missing."""
    libraries = ("builtins", "enum", "msgspec")
    ours = [base for base in reversed(owner.__mro__) if base.__module__.split(".")[0] not in libraries]
    classes = [ast.parse(textwrap.dedent(inspect.getsource(base))).body[0] for base in ours]
    statements = [each for one in classes if isinstance(one, ast.ClassDef) for each in one.body]
    docs = {}
    for statement, following in itertools.pairwise(statements):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text)
    return docs


class UndocumentedError(Exception):
    """A setting, metric or field has no text. The text names it."""


def daemon_settings() -> str:
    lines: list[str] = []
    for section in types.type_info(Settings).fields:  # type: ignore[attr-defined]  # a struct's
        lines += _section(section.name, section.type.cls)
    return "\n".join(lines)


def client_settings() -> str:
    """Return the reference of client.toml as Markdown."""
    docs = attribute_docs(ClientConfig)
    lines: list[str] = []
    for field in types.type_info(ClientConfig).fields:  # type: ignore[attr-defined]  # a struct's
        if field.name not in NOT_IN_THE_FILE:
            facts = [_facts(field.name, field.type), _default(field)]
            lines += _entry("client", field.name, facts, docs)
    return "\n".join(lines)


def producer_settings() -> str:
    docs, hints = attribute_docs(ProducerSettings), get_type_hints(ProducerSettings)
    lines: list[str] = []
    for field in dataclasses.fields(ProducerSettings):
        facts = [_facts(field.name, types.type_info(hints[field.name])), f"default `{field.default!r}`"]
        lines += _entry("producer", field.name, facts, docs)
    return "\n".join(lines)


def _section(section: str, owner: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the lines of one table of the file."""
    title, _, more = (inspect.getdoc(owner) or "").partition("\n\n")
    _, _, text = title.partition(": ")
    yield from (f"## `[{section}]`", "", text[:1].upper() + text[1:], "", more, "")
    docs = attribute_docs(owner)
    for field in types.type_info(owner).fields:  # type: ignore[attr-defined]  # a struct's
        name = f"{section}.{field.name}"
        facts = [_facts(field.name, field.type), _default(field), _reload(name)]
        yield from _entry(section, field.name, facts, docs, title=name)


def _entry(group: str, name: str, facts: list[str], docs: dict[str, str], title: str = "") -> Iterator[str]:
    if not docs.get(name):
        raise UndocumentedError(f"the setting {group}.{name} has no text: add one below its field")
    yield from (f"### `{title or name}`", "", f"*{' · '.join(facts)}*", "", docs[name], "")


def _reload(name: str) -> str:
    """Return what SIGHUP does with a change of this setting."""
    if name in AT_RUN_TIME:
        return "SIGHUP applies a change"
    if name in FILES_READ_AGAIN:
        return "SIGHUP reads the file again, and another path needs a restart"
    return "a change needs a restart"


def _default(field: types.Field) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None:
        return "default: not set"
    if isinstance(value, bool):
        return f"default `{str(value).lower()}`"
    if isinstance(value, str):
        return f'default `"{value}"`'
    return f"default `{value:_}`" if isinstance(value, int) else f"default `{value}`"


def _facts(name: str, kind: types.Type) -> str:
    """Return type, limits and unit."""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return _described(kind) + (f", in {unit}" if unit else "")


def _described(kind: types.Type) -> str:
    match kind:
        case types.BoolType():
            return "true or false"
        case types.IntType():
            return "integer" + _limits(kind)
        case types.FloatType():
            return "number" + _limits(kind)
        case types.LiteralType():
            return "one of " + ", ".join(f'`"{value}"`' for value in kind.values)
        case types.StrType():
            return "text" + (f" that matches `{kind.pattern}`" if kind.pattern else "")
        case types.ListType():
            return "list of texts" + (f", at most {kind.max_length}" if kind.max_length else "")
        case types.DictType():
            return "table of texts"
        case types.UnionType():
            return _described(next(each for each in kind.types if not isinstance(each, types.NoneType)))
        case _:
            raise AssertionError(f"the reference cannot describe {kind}")


def _limits(kind: types.IntType | types.FloatType) -> str:
    least = _number(kind.ge) if kind.ge is not None else None
    above = _number(kind.gt) if kind.gt is not None else None
    most = _number(kind.le) if kind.le is not None else None
    low = f" from {least}" if least else f" above {above}" if above else ""
    return low + (f" to {most}" if low and most else f" up to {most}" if most else "")


def _number(value: float) -> str:
    """Return a limit with groups of digits, or as a power."""
    if isinstance(value, int) and value >= LONGEST_POWER_IN_DIGITS and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    if value >= LONGEST_IN_DIGITS:
        return f"{value:.0e}".replace("e+", "e")
    return f"{value:,}".replace(",", " ").removesuffix(".0")


def exit_code_reference() -> str:
    """Return the exit codes of commands as a Markdown table."""
    docs = attribute_docs(ExitCode)
    if undocumented := [code.name for code in ExitCode if code.name not in docs]:
        raise UndocumentedError(f"exit codes without a text: {', '.join(undocumented)}")
    rows = [f"| {code.value} | {' '.join(docs[code.name].split())} |".replace("``| ", r"``\| ") for code in ExitCode]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def metrics_reference() -> str:
    """Return every metric of a daemon as Markdown: type, labels with their values, and meaning."""
    registry = CollectorRegistry()
    instruments = Instruments(registry, backlog_topics=("example",))
    families = sorted(registry.collect(), key=lambda family: family.name)
    lines = []
    for family in families:
        lines += _metric(family, instruments.labels.get(family.name, {}))
    return "\n".join(lines)


def _metric(family: Metric, labels: Mapping[str, Values]) -> list[str]:
    if not family.documentation:
        raise UndocumentedError(f"the metric {family.name} has no text")
    name = f"{family.name}_total" if family.type == "counter" else family.name
    facts = [family.type, *(f"label `{label}`{_values(values)}" for label, values in labels.items())]
    return [f"## `{name}`", "", f"*{' · '.join(facts)}*", "", family.documentation, ""]


def _values(values: Values) -> str:
    if values is None:
        return ""
    return ": " + ", ".join(f"`{value}`" for value in (*values, OTHER))


MEANINGS = Path(__file__).with_name("log_meanings.toml")


@dataclasses.dataclass(slots=True)
class LogEvent:
    """One event, over all calls that log it."""

    levels: set[str] = dataclasses.field(default_factory=set)
    fields: dict[str, None] = dataclasses.field(default_factory=dict)
    packages: set[str] = dataclasses.field(default_factory=set)


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
