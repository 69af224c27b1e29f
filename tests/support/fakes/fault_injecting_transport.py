"""A transport over a real broker that loses, delays, duplicates and reorders selected messages.

A rule takes one message and returns the messages to transfer, as (delay in seconds, message) pairs. No pair loses it, two
pairs duplicate it, and a delay lets others overtake it. Leader announcements can be delayed. Messages without a rule are
transferred unchanged.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import msgspec

from headgate.protocol import messages as m
from headgate.transport.mqtt import MqttTransport
from headgate.transport.port import MessageHandler

Copy = TypeVar("Copy")
Rule = Callable[[Copy], Sequence[tuple[float, Copy]]]


def pass_through(message: Copy) -> Sequence[tuple[float, Copy]]:
    """The rule of a network without faults."""
    return [(0.0, message)]


def dropped(_: Copy) -> Sequence[tuple[float, Copy]]:
    """The rule of a network that loses everything."""
    return []


class FaultInjectingTransport:
    """A `headgate.transport.port.Transport` with rules for requests and replies."""

    def __init__(self, inner: MqttTransport) -> None:
        self.on_request: Rule[m.Request] = pass_through
        self.on_reply: Rule[m.AnyReply] = pass_through
        self.requests: list[m.Request] = []
        """Requests of the client, including lost ones."""
        self.replies: list[m.AnyReply] = []
        """Replies of the leaders, including lost ones."""
        self._inner = inner
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def pending(self) -> bool:
        """Whether a delayed message has not been delivered yet."""
        now = asyncio.get_running_loop().time()
        return any(timer.when() >= now and not timer.cancelled() for timer in self._timers)

    @property
    def connected(self) -> bool:
        return self._inner.connected

    @property
    def unreachable_reason(self) -> str | None:
        return self._inner.unreachable_reason

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        self._inner.on_connection(handler)

    def on_refusal(self, handler: Callable[[str], None]) -> None:
        self._inner.on_refusal(handler)

    async def subscribe(self, topic_filter: str, handler: MessageHandler, *, retained: bool = False) -> None:
        def arrived(topic: str, payload: bytes) -> None:
            if topic.endswith("/replies"):
                self._apply_rule(
                    m.decode_reply(payload), self.replies, self.on_reply, lambda copy: handler(topic, copy)
                )
            else:
                handler(topic, payload)

        await self._inner.subscribe(topic_filter, arrived, retained=retained)

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._inner.unsubscribe(topic_filter)

    def max_payload_bytes(self, topic: str) -> int:
        return self._inner.max_payload_bytes(topic)

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, correlation_data: bytes | None = None
    ) -> bool:
        if "/requests/" not in topic:
            return self._inner.publish(topic, payload, retain=retain, correlation_data=correlation_data)
        self._apply_rule(
            m.decode_request(payload), self.requests, self.on_request, lambda copy: self._inner.publish(topic, copy)
        )
        return True

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        await self._inner.__aexit__(None, None, None)

    def _apply_rule(
        self, message: Copy, seen: list[Copy], rule: Rule[Copy], transfer: Callable[[bytes], object]
    ) -> None:
        seen.append(message)
        for delay_seconds, copy in rule(message):
            assert isinstance(copy, msgspec.Struct)
            if delay_seconds == 0.0:
                transfer(m.encode(copy))
            else:
                self._timers.add(asyncio.get_running_loop().call_later(delay_seconds, transfer, m.encode(copy)))
