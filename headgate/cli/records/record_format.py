r"""A record as fields of a JSON object, or as the text that ``headgate read --format`` describes. Pure.

Placeholders begin with ``%`` and escapes with a backslash; both are listed in `PLACEHOLDERS` and `ESCAPES`. Keys and
values are written byte for byte. In JSON they are strings, or base64 if they are no text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headgate.model.headers import Headers
from headgate.model.text import as_text
from headgate.model.time_text import iso_time

if TYPE_CHECKING:
    from headgate.reading.stored_rows import LedgerRecord

Formatter = Callable[["LedgerRecord"], bytes]
ESCAPES: Final = {r"\n": b"\n", r"\t": b"\t", r"\r": b"\r", r"\0": b"\0", r"\\": b"\\"}
_PART: Final = re.compile(r"[%\\].?|[^%\\]+", re.DOTALL)


def put_text(line: dict[str, Any], name: str, data: bytes) -> None:
    """Put ``data`` into ``line`` as field ``name``; if it is base64, the field ``<name>_encoding`` says so."""
    line[name], encoding = as_text(data)
    if encoding != "utf-8":
        line[f"{name}_encoding"] = encoding


def json_headers(headers: Headers) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": name} for name, _ in headers]
    for line, (_, value) in zip(found, headers, strict=True):
        put_text(line, "value", value)
    return found


PLACEHOLDERS: Final[dict[str, tuple[str, Formatter]]] = {
    "%k": ("key", lambda record: record.key),
    "%v": ("value", lambda record: record.value),
    "%h": ("headers as name=value, separated by commas", lambda record: _shown(record.headers)),
    "%o": ("offset", lambda record: b"%d" % record.offset),
    "%s": ("segment", lambda record: b"%d" % record.segment),
    "%t": ("timestamp in milliseconds since 1970", lambda record: b"%d" % record.timestamp_ms),
    "%T": ("timestamp as 2026-01-31T18:00:00.000Z", lambda record: iso_time(record.timestamp_ms).encode()),
    "%%": ("a percent sign", lambda _: b"%"),
}


class UnknownPlaceholderError(ValueError):
    """The text names the mistake and the valid choices."""


def record_formatter(text: str) -> Formatter:
    parts = [_formatter(part) for part in _PART.findall(text)]
    return lambda record: b"".join(part(record) for part in parts)


def _formatter(part: str) -> Formatter:
    if part in PLACEHOLDERS:
        return PLACEHOLDERS[part][1]
    if part[0] in "%\\" and part not in ESCAPES:
        choices = ", ".join((*PLACEHOLDERS, *ESCAPES))
        raise UnknownPlaceholderError(f"{part!r} means nothing; choose from {choices}")
    text = ESCAPES.get(part) or part.encode()
    return lambda _: text


def _shown(headers: Headers) -> bytes:
    """Return headers for people: bytes that are no text, and characters that a terminal does not show, are escaped."""
    return printable(",".join(f"{name}={value.decode(errors='backslashreplace')}" for name, value in headers)).encode()


def printable(text: str) -> str:
    """Return ``text`` with what a terminal does not show, or obeys, escaped."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
