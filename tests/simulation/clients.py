"""MQTT devices of a simulated cluster: they publish counters and rely only on the broker's PUBACK.

Device intake is sometimes switched off and on. While it is on, and the leader has subscribed again, the broker keeps
every publication for the leader. Otherwise it may discard one, and then the device publishes the same counter again.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from headgate.client.connection import Client
from headgate.protocol.codec import device_sentinel_topic, publish_filters
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.rare_clients import headers_of
from tests.support.fakes.device_broker import FakeDeviceBroker

DEVICES = 3
DROP_PROBABILITY = 0.2
"""Probability that the leader's session is disconnected right after a publication."""
SWITCH_PROBABILITY = 0.05
"""Probability that the intake is switched before a publication, in most runs."""
KEY_PREFIX = b"device/"


class DeviceClients:
    """Devices, and the session that the broker keeps for the leader."""

    def __init__(
        self,
        rng: random.Random,
        cluster: str,
        topic: str,
        on_switch: Callable[[], None],
        pause: Callable[[random.Random, float, float], Awaitable[None]],
        *,
        shard: int,
        switch_probability: float,
    ) -> None:
        """``on_switch`` is called when `on` changes. ``pause`` waits between publications.

        ``shard``: that of ``topic``. ``switch_probability``: per publication.
        """
        self.broker = FakeDeviceBroker(window=20)
        self.published: dict[bytes, list[int]] = defaultdict(list)
        """Key → counters with a PUBACK that the broker keeps."""
        self.on = True
        self.retain = 0.0
        """Probability that a publication is retained by the broker."""
        self._on_switch = on_switch
        self._pause = pause
        self._session = f"headgate:{cluster}:shard:{shard}:topic:"
        self._switch_probability = switch_probability
        self._subscribed_publications = 2
        """Publications that the broker kept since the intake was switched on."""
        self._rng = rng
        self._filters = publish_filters(cluster, topic)
        self._sentinel_of = partial(device_sentinel_topic, cluster, shard)
        self._topic_prefix = f"headgate/{cluster}/publish/{topic}/"

    def publish_to(self, topic_id: int) -> None:
        self._session += f"{topic_id}:"
        self._filters |= {self._sentinel_of(topic_id)}

    @property
    def is_settled(self) -> bool:
        """Whether the broker has nothing queued, and exactly the expected subscriptions."""
        filters = self.broker.filters(self._session)
        return self.broker.waiting(self._session) == 0 and filters == (self._filters if self.on else set())

    def check(self) -> None:
        """Raise BrokenPromiseError unless settled."""
        if not self.is_settled:
            raise BrokenPromiseError(
                f"devices are switched {'on' if self.on else 'off'}, but the broker's session ends with subscriptions "
                f"{sorted(self.broker.filters(self._session))} and {self.broker.waiting(self._session)} queued messages"
            )

    def switch(self, on: bool) -> None:
        """Switch the device intake of all daemons."""
        if on != self.on:
            # A subscription that still exists may be about to be removed: the first publication proves nothing.
            self.on, self._subscribed_publications = on, 0
            self._on_switch()

    async def publish(self) -> None:
        """Publish until cancelled. The leader must have subscribed already: earlier publications may be lost."""
        while True:
            await self._pause(self._rng, 0.3, 3)
            if self._rng.random() < self._switch_probability:
                self.switch(not self.on)
            if self.broker.running:
                key = KEY_PREFIX + b"%d" % self._rng.randrange(DEVICES)
                counters = self.published[key]
                retain = self.retain > 0 and self._rng.random() < self.retain
                headers = headers_of(key, len(counters))
                path, value = self._topic_prefix + key.decode(), b"%d" % len(counters)
                if self.broker.publish(path, value, retain=retain, headers=headers):
                    counters.append(len(counters))
                    self._subscribed_publications += self.on
                elif self._subscribed_publications >= 2:
                    raise BrokenPromiseError(f"{key!r} #{len(counters)} has a PUBACK, and the broker discarded it")
                if self._rng.random() < DROP_PROBABILITY:
                    # The leader accepts it, but its PUBACK is lost: the broker delivers it again.
                    await asyncio.sleep(self._rng.uniform(0, 0.01))
                    self.broker.drop(self._session)


class CommandClient(Client):
    """A client that shows the token of its last command."""

    token = ""

    def new_token(self) -> str:
        self.token = super().new_token()
        return self.token
