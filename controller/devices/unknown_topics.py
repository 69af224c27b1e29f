"""Notices what MQTT devices publish to topics that do not exist: no session receives it, and devices get a PUBACK.

A daemon that leads subscribes to all publications with its own connection, at QoS 0, so it receives
each one a second time. That has a limit per window; what follows in the window is not looked at. So
a device that publishes again and again is noticed, and a busy cluster counts too few.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from controller.devices.intake import DeviceIntake
from headgate.errors import TransportError
from headgate.model.hashing import ShardMap
from headgate.protocol.mqtt_topics import all_publications_filters, parse_publish_address
from headgate.transport.port import Transport

CHECK_INTERVAL_SECONDS: Final = 1.0
"""How soon the subscription follows the leaders, the setting and the limit."""

WINDOW_SECONDS: Final = 60.0
MAX_MESSAGES: Final = 6_000
"""In a window, with `MAX_BYTES`: about half a percent of a daemon's time."""
MAX_BYTES: Final = 16 * 1024 * 1024

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class UnknownTopicWatch:
    """Passes publications to the leaders of their shards in this daemon, which count the lost ones."""

    cluster: str
    transport: Transport
    intakes: Callable[[], Sequence[DeviceIntake | None]]
    """Per shard, that of its leader; None where this daemon does not lead."""
    shards: Callable[[], ShardMap]
    enabled: Callable[[], bool]
    _messages: int = 0
    _size_bytes: int = 0

    async def run(self) -> None:
        """Watch until cancelled, or until the broker rejects the subscription."""
        loop = asyncio.get_running_loop()
        window_ends_at = 0.0
        subscribed = False
        while True:
            if loop.time() >= window_ends_at:
                window_ends_at = loop.time() + WINDOW_SECONDS
                self._messages = self._size_bytes = 0
            wanted = self._wanted()
            if wanted and not subscribed:
                try:
                    for each in all_publications_filters(self.cluster):
                        await self.transport.subscribe(each, self._on_publication)
                except TransportError as error:
                    log.warning("device.watch_rejected", reason=str(error))
                    await self._unsubscribe()
                    return
            elif subscribed and not wanted:
                await self._unsubscribe()
            subscribed = wanted
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

    async def _unsubscribe(self) -> None:
        for each in all_publications_filters(self.cluster):
            await self.transport.unsubscribe(each)

    def _wanted(self) -> bool:
        return (
            self.enabled()
            and self._messages < MAX_MESSAGES
            and self._size_bytes < MAX_BYTES
            and any(intake is not None for intake in self.intakes())
        )

    def _on_publication(self, mqtt_topic: str, payload: bytes) -> None:
        self._messages += 1
        self._size_bytes += len(payload)
        intakes = self.intakes()
        name = parse_publish_address(self.cluster, mqtt_topic).topic
        places = [intakes[shard] for shard in self.shards().candidates(name) if shard < len(intakes)]
        # Of several places, only a daemon that leads all knows that none has the topic.
        having = (each for each in places if each is not None and each.has_topic(name))
        intake = next(having, None if None in places else places[0])
        if intake is not None:
            intake.note_publication(name, mqtt_topic, len(payload))
