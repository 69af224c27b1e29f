"""Bytes and lists as text, and what is not readable as JSON. Pure."""

import base64
from collections.abc import Collection
from itertools import islice
from typing import Final, Literal

import msgspec

Encoding = Literal["utf-8", "base64"]
MAX_SHOWN: Final = 10
UNREADABLE_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Not JSON or of another form, no UTF-8, or nested more deeply than Python's recursion limit."""


def as_text(data: bytes) -> tuple[str, Encoding]:
    """Return ``data`` as text without loss: itself if it is UTF-8, otherwise base64."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def as_bytes(text: str, encoding: Encoding) -> bytes:
    """Return what `as_text` was given. Raises ValueError: ``text`` is not of this encoding."""
    try:
        return text.encode() if encoding == "utf-8" else base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {encoding}: {error}") from None


def short_list(items: Collection[object], shown: int = MAX_SHOWN) -> list[object]:
    """Return the first ``shown`` of ``items``; if there are more, a last text says how many."""
    more = len(items) - shown
    return [*islice(items, shown), *([f"… and {more} more"] if more > 0 else [])]


def listed(items: Collection[object], shown: int = MAX_SHOWN, separator: str = ", ") -> str:
    return separator.join(map(str, short_list(items, shown)))


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
