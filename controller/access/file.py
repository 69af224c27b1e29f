"""Read the access file: user → rights. TOML, one table per right.

    [[users.shop]]
    role = "producer"
    topics = ["orders"]

    [[users.billing]]
    role = "consumer"
    topics = ["orders"]
    subscriptions = ["billing"]

Every error names the file, the user, what is wrong, and what would be valid.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from controller.access.rules import ANY, AccessRules, Right, Role
from headgate.errors import ConfigError, InvalidNameError
from headgate.protocol.messages import require_name

MAX_FILE_BYTES: Final = 4 * 1024 * 1024

_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\*?|\*")


class _RightFields(msgspec.Struct, forbid_unknown_fields=True):
    role: Role
    topics: tuple[str, ...] = (ANY,)
    subscriptions: tuple[str, ...] = (ANY,)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    users: dict[str, list[_RightFields]]


def read_access_file(path: Path) -> AccessRules:
    """Return the rules in the file at ``path``.

    Raises:
        ConfigError: the file cannot be read, or something in it is not valid.

    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        found = msgspec.convert(tomllib.loads(path.read_text()), _File)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path}: {error}; a right is a table [[users.NAME]] with role, topics, subscriptions"
        ) from None
    try:
        return AccessRules({user: tuple(map(_right, rights)) for user, rights in _named(found.users).items()})
    except (ValueError, InvalidNameError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _named(users: dict[str, list[_RightFields]]) -> dict[str, list[_RightFields]]:
    for user, rights in users.items():
        require_name("user", user)
        for right in rights:
            _check(user, right)
    return users


def _check(user: str, right: _RightFields) -> None:
    for kind, patterns in (("topics", right.topics), ("subscriptions", right.subscriptions)):
        if not patterns:
            raise ValueError(f'user {user}: {kind} = [] allows nothing; name some, or ["*"] for all')
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"user {user}: {pattern!r} in {kind} is neither a name, nor a beginning with *, nor *")
    if right.role is not Role.CONSUMER and right.subscriptions != (ANY,):
        raise ValueError(f"user {user}: subscriptions are for the role consumer, not {right.role}")
    if right.role is Role.DEVICE:
        # The broker enforces these rights, and MQTT knows wildcards for whole levels only.
        for pattern in right.topics:
            if pattern != ANY and pattern.endswith(ANY):
                raise ValueError(f"user {user}: a device's topic is a name or *, not {pattern!r}: the broker checks it")


def _right(fields: _RightFields) -> Right:
    return Right(fields.role, fields.topics, fields.subscriptions)
