"""The origin of a dead letter: headers that its sender adds, and whose dead letter a stored record is. Pure.

An origin names the ledger, and the topic and the subscription by their ids: one that was deleted and created again
under its name has no part in what the former one left.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headgate.model.headers import Headers

ORIGIN_PREFIX: Final = "headgate-source-"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter is from, how often it was delivered, and why it failed."""

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

    @property
    def owner(self) -> tuple[str, str, int, int]:
        """Ledger, topic and subscription. Ids are those of a shard, which the topic's name tells."""
        return self.ledger, self.topic, self.topic_id, self.subscription_id

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
