"""Keys, values and headers as fields of a JSON object: strings, or base64 if they are no text. Pure."""

from typing import Any

from headgate.model.byte_text import as_text
from headgate.model.headers import Headers


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
