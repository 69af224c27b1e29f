"""Explain msgspec's validation errors: which setting, what is wrong, what would be valid. Pure.

msgspec.ValidationError has no attributes, only a text (msgspec 0.22), so the path and the kind of error are parsed from
that text. Types and limits come from msgspec.inspect.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

Converted = TypeVar("Converted")
_ANY_KEY: Final = "[...]"
"""msgspec's name for a key of a mapping."""
_AT = re.compile(r"^(?P<problem>.*?)(?: - at (?:`key` in )?`(?P<path>\$[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`$")


def convert_document(document: Mapping[str, Any], kind: type[Converted]) -> Converted:
    """Return ``document`` as a value of ``kind``. Raises ValidationError, whose path names the key of a mapping."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        found = str(error)
        path, mark, _ = found.partition(_ANY_KEY)
        if not mark:
            raise
        names = path.rpartition("$.")[2].split(".")
        keys = [key for key in _at(document, names) if _error(_with_only(document, names, key), kind) == found]
        raise msgspec.ValidationError(found.replace(_ANY_KEY, f".{keys[0]}", 1)) from None


def _at(document: Mapping[str, Any], names: list[str]) -> Mapping[str, Any]:
    for name in names:
        document = document[name]
    return document


def _with_only(document: Mapping[str, Any], names: list[str], key: str) -> dict[str, Any]:
    """Return ``document`` with no key but ``key`` in the mapping at ``names``."""
    if not names:
        return {key: document[key]}
    return {**document, names[0]: _with_only(document[names[0]], names[1:], key)}


def _error(document: Mapping[str, Any], kind: type) -> str:
    try:
        msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def explain(
    message: str, root: type[msgspec.Struct], *, sections: bool = True, hidden: Collection[str] = frozenset()
) -> str:
    """Return ``$.section.field: what is wrong; what would be valid`` for the ``message`` of a ValidationError.

    ``sections``: whether the fields of ``root`` are sections. ``hidden``: those that no file contains.
    """
    match = _AT.match(message)
    assert match is not None, message
    problem, path = match["problem"], match["path"] or "$"
    kind = "section" if sections and path == "$" else "setting"
    if unknown := _UNKNOWN.match(problem):
        known = [name for name in _fields(_type_at(path, root)) if name not in hidden]
        return _unknown(unknown["field"], kind, path, known)
    if missing := _MISSING.match(problem):
        field = missing["field"]
        return f"{path}.{field}: this {kind} is required; write for example {_example(field, path)}"
    valid = _valid_values(_type_at(path, root))
    return f"{path}: {problem[0].lower()}{problem[1:]}" + (f"; use {valid}" if valid else "")


def _unknown(field: str, kind: str, path: str, known: list[str]) -> str:
    near = difflib.get_close_matches(field, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{path}.{field}: unknown {kind}; {hint}Valid: {', '.join(known)}"


def _example(field: str, path: str) -> str:
    ledger, right = '[ledger] url = "file:///var/lib/headgate/ledger"', '[[users.shop]] role = "producer"'
    shown = {("$", "ledger"): ledger, ("$.ledger", "url"): ledger, ("$", "users"): right}
    return shown.get((path, field), f"{field} = …")


def _type_at(path: str, root: type[msgspec.Struct]) -> inspect.Type | None:
    """Return the type of the setting at ``path``; None behind a key with a dot."""
    current: inspect.Type | None = inspect.type_info(root)
    for part in path.split(".")[1:]:
        name, in_list, _ = part.partition("[")
        current = current.value_type if isinstance(current, inspect.DictType) else _fields(current).get(name)
        if in_list and isinstance(current, inspect.ListType | inspect.VarTupleType):
            current = current.item_type
        match current:
            case inspect.UnionType(types=(current, inspect.NoneType())):
                pass
    return current


def _fields(struct: inspect.Type | None) -> dict[str, inspect.Type]:
    return {field.name: field.type for field in struct.fields} if isinstance(struct, inspect.StructType) else {}


def _valid_values(found: inspect.Type | None) -> str:
    match found:
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.EnumType(cls=cls) | inspect.DictType(key_type=inspect.EnumType(cls=cls)):
            return " or ".join(f'"{each.value}"' for each in cls)
        case inspect.UnionType(types=types):
            return " or ".join(filter(None, map(_valid_values, types)))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _range(found)
        case inspect.StrType():
            return f"text that matches {found.pattern}" if found.pattern else 'text in quotes, not ""'
        case inspect.StructType():
            return f"a section with: {', '.join(_fields(found))}"
        case _:
            return ""


def _range(number: inspect.IntType | inspect.FloatType) -> str:
    kind = "a whole number" if isinstance(number, inspect.IntType) else "a number"
    if number.gt is not None:
        return f"{kind} above {number.gt:g} up to {number.le}"
    return kind if number.ge is None else f"{kind} from {number.ge} to {number.le}"
