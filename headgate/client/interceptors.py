"""Where a program adds something around every send and every call of a handler, such as traces.

An interceptor wraps the next step of a chain. The first one of a list is the outermost. A chain is built once, so a
client without interceptors pays one comparison for each record.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from headgate.client.consumed_record import ConsumedRecord
from headgate.client.producing.record_batch import Delivery
from headgate.model.headers import Headers


class OutgoingRecord(msgspec.Struct, frozen=True):
    """One record that a program sends; the arguments of `Producer.send`. Copy it with `msgspec.structs.replace`."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    timestamp_ms: int | None
    source_position: bytes | None


Send: TypeAlias = Callable[[OutgoingRecord], Awaitable[Delivery]]
"""Buffers one record; returns and raises what `Producer.send` does."""
Handle: TypeAlias = Callable[[list[ConsumedRecord]], Awaitable[object]]
"""Calls the handler of `Consumer.run` once; what it raises, the handler raised."""
Step = TypeVar("Step")


class Interceptor:
    """Wraps steps of a producer or consumer. Override what you need; the others pass everything on."""

    def intercept_send(self, send: Send) -> Send:
        """Return what a producer calls instead of ``send``, for each record."""
        return send

    def intercept_handle(self, handle: Handle, *, subscription: str, consumer: str) -> Handle:
        """Return what `Consumer.run` calls instead of ``handle``, for each attempt; both names are the consumer's."""
        del subscription, consumer
        return handle


def chained(step: Step, wrappers: Sequence[Callable[[Step], Step]]) -> Step:
    """Return ``step`` in all ``wrappers``, the first one outermost."""
    for wrap in reversed(wrappers):
        step = wrap(step)
    return step
