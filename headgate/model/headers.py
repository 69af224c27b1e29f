"""Headers of records: their type, their limits, what is wrong with given ones, and those of dead letters. Pure.

A header is a name and a value of bytes. A record has up to `MAX_HEADERS`, in the producer's order, and a name may occur
more than once, as in Kafka. Names that begin with `RESERVED_PREFIX` are headgate's own: a dead letter states its origin
in them. A producer may send those only if it says so (``reserved``), as what copies stored records does. They have
space of their own, so every stored record can become a dead letter, and keeps its headers.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from headgate.model.identifiers import NUMBER_BITS

Header: TypeAlias = tuple[str, bytes]
Headers: TypeAlias = tuple[Header, ...]
GivenHeaders: TypeAlias = Mapping[str, bytes] | Iterable[Header]

MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16 * 1024
"""Limit for the names, as UTF-8, and values of one record together. They count in the record's size, too."""
MAX_OWN_HEADERS: Final = 16
MAX_OWN_HEADER_BYTES: Final = 4 * 1024
"""For headgate's own. They do not count in the record's size."""
RESERVED_PREFIX: Final = "headgate-"
_SHOWN_CHARACTERS: Final = 60
ORIGIN_PREFIX: Final = "headgate-source-"


def header_bytes(headers: Iterable[Header]) -> int:
    return sum([len(name.encode()) + len(value) for name, value in headers])


def counted_bytes(headers: Headers) -> int:
    """Return what the headers count in the size of their record."""
    return header_bytes(each for each in headers if not each[0].startswith(RESERVED_PREFIX))


def wrong_headers(headers: Headers, *, reserved: bool) -> str | None:
    """Return what is wrong with the headers of one record, as what follows "it has …"; None: nothing.

    ``reserved``: names that begin with `RESERVED_PREFIX` are permitted.
    """
    own: list[str] = []
    size = own_bytes = 0
    for name, value in headers:  # One loop: a batch has thousands of records with headers.
        if not name:
            return "a header without a name"
        if name.startswith(RESERVED_PREFIX):
            own.append(name)
            own_bytes += len(name.encode()) + len(value)
        else:
            size += len(name.encode()) + len(value)
    if (count := len(headers) - len(own)) > MAX_HEADERS:
        return f"{count} headers; the limit is {MAX_HEADERS}"
    if size > MAX_HEADER_BYTES:
        return f"headers of {size} bytes (names and values); the limit is {MAX_HEADER_BYTES}"
    if own and not reserved:
        shown = own[0][:_SHOWN_CHARACTERS]
        return f"the header {shown!r}: names that begin with {RESERVED_PREFIX!r} are headgate's own"
    if len(own) > MAX_OWN_HEADERS or own_bytes > MAX_OWN_HEADER_BYTES:
        return (
            f"{len(own)} headers of headgate's own; the limits are {MAX_OWN_HEADERS} and {MAX_OWN_HEADER_BYTES} bytes"
        )
    return None


def checked_headers(given: GivenHeaders) -> Headers:
    """Return the headers that a program gave.

    Raises TypeError: they are not pairs of str and bytes. Raises ValueError: a name is no Unicode text.
    """
    headers: list[Header] = []
    for index, pair in enumerate(given.items() if isinstance(given, Mapping) else given):
        match pair:
            case (str(name), bytes(value)):
                headers.append((str.__str__(name), bytes(value)))
            case _:
                raise TypeError(
                    f"headers: item {index} is {pair!r:.{_SHOWN_CHARACTERS}}; give pairs of a name (str) and a value "
                    "(bytes), or a mapping of names to values"
                )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"header {index} has the name {name!a:.{_SHOWN_CHARACTERS}}, which is no Unicode"
            ) from None
    return tuple(headers)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter is from, how often it was delivered, and why it failed. Its sender adds it as headers.

    It names the ledger, and the topic and the subscription by their ids: one that was deleted and created again under
    its name has no part in what the former one left.
    """

    ledger: str
    topic: str
    topic_id: int
    subscription: str
    subscription_id: int
    segment: int
    offset: int
    deliveries: int
    reason: str
    died_at_ms: Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
    parked_number: int = 0
    """Its number among the records of its parked key; 0: it was not parked."""

    def is_of(self, ledger: str, topic: str, topic_id: int | None, subscription_id: int) -> bool:
        """Return whether it is of this subscription, or of that from which a copied ledger has it, under another id.

        Ids of topics and subscriptions are random. Those that an earlier version gave are small, in every ledger.
        """
        named = self.topic, self.topic_id, self.subscription_id
        is_own = self.ledger == ledger or subscription_id >> NUMBER_BITS != 0
        return is_own and named == (topic, topic_id, subscription_id)

    def headers(self) -> Headers:
        return tuple(
            (f"{ORIGIN_PREFIX}{field.replace('_', '-')}", str(getattr(self, field)).encode())
            for field in self.__struct_fields__
            if field != "parked_number" or self.parked_number
        )


def origin_of(headers: Headers) -> Origin | None:
    """Return what `Origin.headers` has written; None: this is no dead letter."""
    own = {
        name.removeprefix(ORIGIN_PREFIX).replace("-", "_"): value
        for name, value in headers
        if name.startswith(ORIGIN_PREFIX)
    }
    try:
        return msgspec.convert({name: value.decode() for name, value in own.items()}, Origin, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return None


def without_origin(headers: Headers) -> Headers:
    return tuple(header for header in headers if not header[0].startswith(ORIGIN_PREFIX))
