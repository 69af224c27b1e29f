"""Write the TOML that we read: sections of plain values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

Value = str | int | float | bool | Mapping[str, str] | None


def toml_text(comment: str, values: Mapping[str, Value], sections: Mapping[str, Mapping[str, Value]]) -> str:
    """Return a TOML document: a comment, ``values`` at the top, then ``sections``. None is left out."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += _lines(values)
    for name, section in sections.items():
        lines += ["", f"[{name}]", *_lines(section)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Value]) -> list[str]:
    return [f"{name} = {_literal(value)}" for name, value in values.items() if value is not None]


def _literal(value: str | float | Mapping[str, str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's strings are TOML's, except for one character that JSON lets stand.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(name)} = {_literal(item)}" for name, item in value.items()) + "}"
    return repr(value)
