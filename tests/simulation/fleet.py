"""Plain devices of a simulated cluster: they publish counters and trust the broker's PUBACK, nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from headgate.messages import publish_filter
from tests.fakes.devices import FakeDeviceBroker

DEVICES = 3
DROPPED = 0.2
"""How often the connection of the session breaks just after a publication."""
KEY_PREFIX = b"device/"


class Fleet:
    """Some devices, and the sessions that the broker keeps for whoever leads."""

    def __init__(self, rng: random.Random, cluster: str, topic: str) -> None:
        self.broker = FakeDeviceBroker(window=20)
        self.published: dict[bytes, list[int]] = defaultdict(list)
        """Key → counters for which the device has its PUBACK."""
        self._rng = rng
        self._place = publish_filter(cluster, topic).removesuffix("#")

    def session_name(self, shard: int) -> str:
        """Return the client id of a shard's session: one, whichever daemon leads."""
        return f"devices-{shard}"

    async def publish(self) -> None:
        """Publish until cancelled. The topic must be followed already: nobody promises what came before."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.3, 3))
            if self.broker.running:
                key = KEY_PREFIX + b"%d" % self._rng.randrange(DEVICES)
                counters = self.published[key]
                self.broker.publish(self._place + key.decode(), b"%d" % len(counters))
                counters.append(len(counters))
                if self._rng.random() < DROPPED:
                    # The leader has taken it, and is not heard any more when it says so: it comes again.
                    await asyncio.sleep(self._rng.uniform(0, 0.01))
                    self.broker.drop(self.session_name(0))
