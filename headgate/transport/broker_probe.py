"""Connects to a broker once, as every program does, and returns what it accepts.

Nothing is published or subscribed.
"""

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

from headgate.errors import TransportError
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt import MqttTransport
from headgate.transport.port import BrokerProperties


class _Probe(MqttTransport):
    logs_outages: ClassVar[bool] = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended = asyncio.Event()
        """The first attempt has connected or failed; one that only asked for another version does not count."""
        self.on_connection(lambda _: self.ended.set())

    def _detach(self) -> None:
        super()._detach()
        if self.unreachable_reason is not None:
            self.ended.set()


async def read_broker_properties(
    host: str, port: int, client_id: str, *, timeout_seconds: float, **options: Any
) -> BrokerProperties | None:
    """Connect, and disconnect. ``options``: user, password and TLS, as for `MqttTransport`.

    None: it speaks no MQTT 5. Raises TransportError.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    # The attempt may last longer, so that what follows says how long the broker was silent.
    timing = MqttTiming(connect_timeout_seconds=timeout_seconds + 1)
    async with _Probe(host, port, client_id, timing=timing, **options) as probe:
        try:
            async with asyncio.timeout(timeout_seconds):
                await probe.ended.wait()
        except TimeoutError:
            raise TransportError(f"it did not answer within {timeout_seconds:g} s") from None
        if not probe.connected:
            raise TransportError(str(probe.unreachable_reason))
        seconds = loop.time() - began
    return None if probe.broker is None else replace(probe.broker, answer_seconds=seconds)
