"""Keys, values and headers as fields of a JSON object: strings, or base64 if they are no text. Pure."""

import base64
from typing import Any

from headgate.model.headers import Headers


def put_text(line: dict[str, Any], name: str, data: bytes) -> None:
    """Put ``data`` into ``line`` as field ``name``; if it is base64, the field ``<name>_encoding`` says so."""
    try:
        line[name] = data.decode()
    except UnicodeDecodeError:
        line[name] = base64.b64encode(data).decode()
        line[f"{name}_encoding"] = "base64"


def json_headers(headers: Headers) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": name} for name, _ in headers]
    for line, (_, value) in zip(found, headers, strict=True):
        put_text(line, "value", value)
    return found
