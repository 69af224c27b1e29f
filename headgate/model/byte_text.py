"""Bytes as text without loss: themselves if they are UTF-8, otherwise base64. Pure."""

import base64
from typing import Literal

Encoding = Literal["utf-8", "base64"]


def as_text(data: bytes) -> tuple[str, Encoding]:
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
