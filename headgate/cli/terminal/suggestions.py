"""Say which topic was probably meant. A name selects a shard, so only the list of all shards has the near ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from headgate.errors import HeadgateError, RequestRejectedError

if TYPE_CHECKING:
    from headgate import Admin

MAX_NAMES_SHOWN: Final = 10


def unknown_topic(name: str, existing: Iterable[str]) -> str:
    """Return that the topic ``name`` does not exist, with the nearest names, or some of the ``existing`` ones."""
    names = sorted(existing)
    near = get_close_matches(name, names)
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    elif names:
        more = ", …" if len(names) > MAX_NAMES_SHOWN else ""
        hint = f"there are: {', '.join(names[:MAX_NAMES_SHOWN])}{more}"
    else:
        hint = f"create it first: headgate topic create {name}"
    return f"topic {name!r} does not exist; {hint}"


async def explain_rejection(admin: Admin, topic: str, error: RequestRejectedError) -> HeadgateError:
    """Return a better error than ``error`` if it was caused by an unknown ``topic``, otherwise ``error``."""
    if error.verdict != "invalid":
        return error
    try:
        existing = [each.topic for each in await admin.list_topics()]
    except RequestRejectedError:  # The user may not list the topics.
        return error
    return error if topic in existing else HeadgateError(unknown_topic(topic, existing))
