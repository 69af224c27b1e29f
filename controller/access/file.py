"""Read the access file: users with their rights, one table per right, and quotas. TOML.

    [[users.shop]]
    role = "producer"
    topics = ["orders"]

    [[users.billing]]
    role = "consumer"
    topics = ["orders"]
    subscriptions = ["billing"]

    [quotas]                        # of each user
    requests_per_second = 2000
    [quotas.roles.consumer]         # of each user with this role
    consumers = 5000
    [quotas.users.shop]             # of this user
    bytes_per_second = "unlimited"

Every error names the file, the user, what is wrong, and what would be valid.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from headgate.errors import ConfigError, InvalidNameError
from headgate.protocol.codec import MAX_MESSAGE_BYTES
from headgate.protocol.request_fields import require_name
from headgate.settings.setting_errors import convert_document, explain
from metrics.label_values import Quota
from shard.access.quotas import DEFAULT_LIMITS, QUOTAS, Limits, limits_of_user
from shard.access.rules import ANY, AccessRules, Right, Role

LEAST_BYTES_PER_SECOND: Final = MAX_MESSAGE_BYTES // 60
"""The largest message is paid for in a minute, half the default delivery timeout."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024

_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\*?|\*")

_Unlimited = Literal["unlimited"]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] | _Unlimited | None


class _QuotaFields(msgspec.Struct, forbid_unknown_fields=True):
    topics: _Count = None
    segments: _Count = None
    subscriptions: _Count = None
    consumers: _Count = None
    producers: _Count = None
    requests_per_second: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | _Unlimited | None = None
    bytes_per_second: Annotated[int, msgspec.Meta(ge=LEAST_BYTES_PER_SECOND, le=2**40)] | _Unlimited | None = None


class _Quotas(_QuotaFields, forbid_unknown_fields=True):
    roles: dict[Role, _QuotaFields] = {}
    users: dict[str, _QuotaFields] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    users: dict[str, list[Right]]
    quotas: _Quotas = msgspec.field(default_factory=_Quotas)


def read_access_file(path: Path) -> AccessRules:
    """Return the rules in the file at ``path``.

    Raises ConfigError: the file cannot be read, or something in it is not valid.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        found = convert_document(tomllib.loads(path.read_text("utf-8-sig")), _File)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read users and rights: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path}: {explain(str(error), _File, sections=False)}; a right is a table [[users.NAME]] with role, "
            "topics, subscriptions; quotas are in [quotas], [quotas.roles.ROLE] and [quotas.users.NAME]"
        ) from None
    try:
        rights = {user: tuple(rights) for user, rights in _named(found.users).items()}
        _check_quotas(found.quotas, rights)
        default = DEFAULT_LIMITS.changed(_limits(found.quotas))
        return AccessRules(rights, limits=_limits_by_user(found.quotas, rights, default), default_limits=default)
    except (ValueError, InvalidNameError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _named(users: dict[str, list[Right]]) -> dict[str, list[Right]]:
    for user, rights in users.items():
        require_name("user", user)
        for right in rights:
            _check(user, right)
    return users


def _check(user: str, right: Right) -> None:
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


def _check_quotas(quotas: _Quotas, rights: Mapping[str, tuple[Right, ...]]) -> None:
    if Role.DEVICE in quotas.roles:
        raise ValueError("quotas.roles.device: the broker does not tell daemons who publishes; limit devices there")
    for user in quotas.users:
        if user not in rights:
            raise ValueError(f"quotas.users.{user}: there is no such user; give it a right, or remove the quota")
        if all(right.role is Role.DEVICE for right in rights[user]):
            raise ValueError(
                f"quotas.users.{user}: the user is only a device, and the broker does not tell daemons who publishes; "
                "limit it there"
            )


def _limits_by_user(quotas: _Quotas, rights: Mapping[str, tuple[Right, ...]], default: Limits) -> dict[str, Limits]:
    of_roles = {role: _limits(fields) for role, fields in quotas.roles.items()}
    found = {}
    for user, of_user in rights.items():
        own = _limits(quotas.users.get(user, _QuotaFields()))
        found[user] = limits_of_user(default, [of_roles.get(right.role, {}) for right in of_user], own)
    return {user: limits for user, limits in found.items() if limits != default}


def _limits(fields: _QuotaFields) -> dict[Quota, float]:
    given = {quota: getattr(fields, quota) for quota in QUOTAS}
    return {
        quota: math.inf if value == "unlimited" else float(value) for quota, value in given.items() if value is not None
    }
