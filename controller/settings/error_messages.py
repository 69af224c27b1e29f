"""Turn msgspec's words about a wrong setting into ours: which setting, what is wrong, what would be right.

Pure: a message and the type that was expected go in, one line comes out. It says nothing about files.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`$")


def explain(message: str, root: type[msgspec.Struct]) -> str:
    """Return ``$.section.field: what is wrong; what would be right`` for a ValidationError's ``message``."""
    match = _AT.match(message)
    assert match is not None, message
    what, path = match["what"], match["path"] or "$"
    if unknown := _UNKNOWN.match(what):
        return _unknown(unknown["field"], path, root)
    if missing := _MISSING.match(what):
        kind = "section" if path == "$" else "setting"
        example = _example(missing["field"], path)
        return f"{path}.{missing['field']}: this {kind} is missing; write for example {example}"
    right = _expected(_type_at(path, root))
    return f"{path}: {what[0].lower()}{what[1:]}" + (f"; use {right}" if right else "")


def _unknown(field: str, path: str, root: type[msgspec.Struct]) -> str:
    known = _fields(_type_at(path, root))
    near = difflib.get_close_matches(field, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    kind = "section" if path == "$" else "setting"
    return f"{path}.{field}: there is no such {kind}; {hint}Valid here: {', '.join(known)}"


def _example(field: str, path: str) -> str:
    if (path, field) == ("$", "ledger") or (path, field) == ("$.ledger", "url"):
        return '[ledger] url = "file:///var/lib/headgate/ledger"'
    return f"{field} = …"


def _type_at(path: str, root: type[msgspec.Struct]) -> Any:
    """Return the annotation of the setting at ``path``, or None where the path leaves our types."""
    current: Any = root
    for name in path.split(".")[1:]:
        if name not in _fields(current):
            return None
        current = get_type_hints(current, include_extras=True)[name]
    return current


def _fields(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return list(annotation.__struct_fields__)
    return []


def _expected(annotation: Any) -> str:
    """Return the values that ``annotation`` takes, in words; empty where no short words would help."""
    meta = None
    if get_origin(annotation) is Annotated:
        annotation, meta = get_args(annotation)[:2]
    if get_origin(annotation) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(annotation))
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        return _range("a whole number" if annotation is int else "a number", meta)
    if annotation is str:
        return f"text that matches {meta.pattern}" if meta is not None and meta.pattern else 'text in quotes, not ""'
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return f"a section with: {', '.join(_fields(annotation))}"
    return ""


def _range(kind: str, meta: Meta | None) -> str:
    if meta is None:
        return kind
    if meta.gt is not None:
        return f"{kind} above {meta.gt:g} up to {meta.le}"
    return f"{kind} from {meta.ge} to {meta.le}"
