"""Write settings and client configurations as TOML, for the programs that read them."""

from typing import Any

import msgspec
import tomli_w

from controller.settings.load import Settings
from headgate.settings.config import ClientConfig


def settings_toml(comment: str, settings: Settings) -> str:
    """Return the document that `headgate run --config` reads as ``settings``."""
    return _document(comment, msgspec.to_builtins(settings))


def client_toml(comment: str, config: ClientConfig) -> str:
    """Return the document that clients read as ``config``."""
    return _document(comment, msgspec.to_builtins(config))


def _document(comment: str, values: dict[str, Any]) -> str:
    return "".join(f"# {line}\n" for line in comment.splitlines()) + tomli_w.dumps(_without_none(values))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is None: TOML has no null, and an absent setting has its default."""
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }
