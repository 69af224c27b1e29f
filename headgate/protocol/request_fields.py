"""What the fields of requests may hold: names, limits and types; and the base classes of request bodies.

Decoding enforces the limits of each field.
"""

import contextlib
import re
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headgate.errors import ConfigError, InvalidNameError
from headgate.model.layout import KEY_BUCKETS, MAX_SHARDS

FIRST_PROTOCOL_VERSION = 1
"""Its clients do not state it."""
PROTOCOL_VERSION = 3
MAX_RECORD_BYTES = 1024 * 1024
"""Limit for key, value and headers of one record. A batch of one such record still fits into MAX_MESSAGE_BYTES."""
MAX_BATCH_RECORDS = 5000
"""Limit for the records and headers of one batch, because the leader does nothing else while it routes them: for some
6 ms. The clients send less than half as many."""
MAX_BATCH_ACKNOWLEDGEMENTS = 1000
"""Limit for the acknowledgements of one batch. Each can concern every key bucket of a segment."""
MAX_BEGUN_RECORDS = 1000
"""Limit for the records that one request begins to deliver, and for the dead letters that one confirms."""
MAX_HELD_SEGMENTS = 10_000
MAX_HISTORY_POINTS = 1000
"""Limit for the holdings that one heartbeat reports: more than a consumer can hold."""
MAX_CONFIRMED_SEGMENTS = 250
"""Limit for the revocations that one request confirms: each can be a release and a grant of the same turn."""
MAX_DELAY_MS = 24 * 3600 * 1000
"""Limit for the delay of a redelivery, and for an acknowledgement time-out: a day."""
MAX_DELIVERIES = 1000
MAX_FAILURE_CHARACTERS = 200
"""Limit for the reason of a negative acknowledgement. It is kept for each record that has failed."""
MAX_PROBLEM_CHARACTERS = 500
"""Limit for the text that says why a consumer cannot send dead letters."""
MAX_PARKED_KEY_BYTES = 256
"""Limit for a key that is parked, because the leader keeps it, and each grant names it."""
MAX_CAPACITY_PERCENT = 1000
"""Limit for the capacity of one consumer. A program that can do more registers under several consumer names."""

Start = Literal["earliest", "latest"]
Behind = Literal["error", "continue"]
"""What a consumer does if records that it has not read were deleted."""
PolicyField = Literal[
    "auto_split", "auto_merge", "min_segments", "max_segments", "max_age_ms", "max_bytes", "ignore_subscriptions"
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# "\Z" and not "$", which also matches before a trailing newline.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")]
Token = Annotated[str, Meta(min_length=1, max_length=64)]
Secret = Annotated[str, Meta(max_length=64)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
History = Annotated[list[tuple[Natural, Natural]], Meta(max_length=MAX_HISTORY_POINTS)]
Epoch = Annotated[int, Meta(ge=0, le=2**31 - 1)]
SegmentCount = Annotated[int, Meta(ge=1, le=1024)]
ShardCount = Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
ShardCounts = Annotated[list[ShardCount], Meta(max_length=MAX_SHARDS)]
"""All numbers of shards that a cluster has had, rising (`headgate.model.layout`)."""
LABEL_PATTERN = r"^[!-~]{1,128}\Z"
Label = Annotated[str, Meta(pattern=LABEL_PATTERN)]
"""Name of an external topic's segment at its source: printable ASCII without spaces."""
ParentLabel = Annotated[str, Meta(min_length=1, max_length=128)]
"""A `Label` that is checked later: nearly all parents are names of listed segments, and a message has 30 000."""
HashText = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,38})\Z")]
"""A hash of up to 128 bits as decimal text, because msgpack integers have 64 bits."""
ProgramText = Annotated[str, Meta(pattern=r"^[!-~]{0,128}\Z")]
"""What a program says about itself: printable ASCII without spaces, so that a terminal can show it."""
Bucket = Annotated[int, Meta(ge=0, le=KEY_BUCKETS - 1)]
DeliveryCount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
DelayMs = Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]
ParkedKeyBytes = Annotated[bytes, Meta(min_length=1, max_length=MAX_PARKED_KEY_BYTES)]
MAX_CHECKPOINT_CHARACTERS = 1024
Checkpoint = Annotated[str, Meta(max_length=MAX_CHECKPOINT_CHARACTERS)]
LedgerId = Annotated[bytes, Meta(max_length=16)]
"""The id of the ledger that a message is about; empty in a world without one."""
LedgerIdText = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")]
Cursor = Annotated[str, Meta(max_length=256)]
"""A position in a list. Clients return it unchanged and do not read it."""


def require_name(kind: str, name: object) -> str:
    """Return ``name``, as an exact str, if it is a valid name for a ``kind`` (topic, consumer, …).

    Raises InvalidNameError: its text states the rule.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{kind} name {name!r:.120}: use 1 to 100 letters, digits, dots, dashes or underscores, "
            "starting with a letter or digit"
        )
    return str.__str__(name)  # nothing encodes a subclass


def failure_text(reason: object) -> str:
    """Return a program's ``reason`` of a failure as a request can state it. Raises ConfigError."""
    if not isinstance(reason, str):
        raise ConfigError(f"reason={reason!r:.60} has to be a str")
    return reason[:MAX_FAILURE_CHARACTERS].encode(errors="replace").decode()


def shared_name(public: str, secret: str) -> str:
    """Return a producer's name that every user who knows ``secret``, of 128 random bits, can open."""
    return f"{public}-{sha256(secret.encode()).hexdigest()[:32]}"


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base class of request bodies."""


_UNDECODABLE = TypeError, ValueError, OverflowError, RecursionError


def require_fields(body: RequestBody) -> None:
    """Raise ConfigError if no leader can decode ``body``: an argument is of another type, or beyond a limit."""
    with contextlib.suppress(*_UNDECODABLE):
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=type(body))
        return
    for field in msgspec.structs.fields(body):
        value = getattr(body, field.name)
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=field.type)
        except _UNDECODABLE as error:
            raise ConfigError(f"{field.name}={value!r:.60}: {error}") from None


class Command(RequestBody, frozen=True, kw_only=True):
    """The field of every command about a daemon, the cluster or a producer. ``token``: the same in each copy of it."""

    token: Token


class ListRequest(RequestBody, frozen=True, kw_only=True):
    """Fields of every request for a list, which is sent in pages. ``after``: the ``next`` of the previous page."""

    after: Cursor | None = None


class TopicRequest(RequestBody, frozen=True):
    """The field of every request about one topic."""

    topic: Name


class SubscriptionRequest(TopicRequest, frozen=True):
    """Fields of every request about one subscription."""

    subscription: Name


class TopicCommand(TopicRequest, frozen=True, kw_only=True):
    """Fields of every command about a topic. ``topic_id``: of the one that was seen, and no other is changed."""

    token: Token
    topic_id: Natural | None = None


class SubscriptionCommand(SubscriptionRequest, frozen=True, kw_only=True):
    """Fields of every command about a subscription. ``topic_id`` and ``subscription_id``: see `TopicCommand`."""

    token: Token
    topic_id: Natural | None = None
    subscription_id: Natural | None = None


class ConsumerRequest(SubscriptionRequest, frozen=True):
    """Fields of every request of a consumer."""

    consumer: Name
    incarnation: Natural


class ReaderRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Fields of every request that rests on what a consumer has read.

    ``history``: chunks that it knows, and the id of the term that wrote each. A leader whose ledger does not
    have one of them refuses the request as ``other_history``.
    """

    history: History = []
