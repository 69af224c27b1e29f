"""Plain devices of a simulated cluster: they publish counters and trust the broker's PUBACK, nothing else.

Now and then the intake is switched off or on under them. While it is on, and since it is followed again, the broker keeps
whatever they publish for whoever leads. Otherwise it may keep nothing, and then the device tries the same counter again.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable

from headgate.protocol.messages import publish_filter
from tests.simulation.broken_promise import InvariantViolationError
from tests.support.device_broker import FakeDeviceBroker

DEVICES = 3
DROP_PROBABILITY = 0.2
"""How often the connection of the session breaks just after a publication."""
SWITCH_PROBABILITY = 0.05
"""How often the intake is switched before a publication."""
KEY_PREFIX = b"device/"


class DeviceClients:
    """Some devices, and the sessions that the broker keeps for whoever leads."""

    def __init__(self, rng: random.Random, cluster: str, topic: str, on_switch: Callable[[], None]) -> None:
        """``on_switch`` is called when the intake is to be switched to `on`."""
        self.broker = FakeDeviceBroker(window=20)
        self.published: dict[bytes, list[int]] = defaultdict(list)
        """Key → counters for which the device has its PUBACK, and which the broker keeps."""
        self.on = True
        self.switches = 0
        self.discarded = 0
        """How many publications the broker kept for nobody."""
        self._on_switch = on_switch
        self._subscribed_publications = 2
        """How many publications have found the topic followed since the intake was switched on."""
        self._rng = rng
        self._filter = publish_filter(cluster, topic)
        self._topic_prefix = self._filter.removesuffix("#")

    def session_name(self, shard: int) -> str:
        """Return the client id of a shard's session: one, whichever daemon leads."""
        return f"devices-{shard}"

    @property
    def settled(self) -> bool:
        """Whether nothing waits for a leader, and the broker keeps what it shall keep, and nothing else."""
        name = self.session_name(0)
        return self.broker.waiting(name) == 0 and self.broker.filters(name) == ({self._filter} if self.on else set())

    def check(self) -> None:
        """See that it is settled; raises InvariantViolationError."""
        if not self.settled:
            name = self.session_name(0)
            raise InvariantViolationError(
                f"devices are switched {'on' if self.on else 'off'}, and in the end the broker keeps for the leader "
                f"{sorted(self.broker.filters(name))}; {self.broker.waiting(name)} wait"
            )

    def switch(self, on: bool) -> None:
        """Let every daemon take in what devices publish, or nothing more."""
        if on != self.on:
            # What is followed when it is switched on may be on its way out: the first publication says little.
            self.on, self._subscribed_publications = on, 0
            self.switches += 1
            self._on_switch()

    async def publish(self) -> None:
        """Publish until cancelled. The topic must be followed already: nobody promises what came before."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.3, 3))
            if self._rng.random() < SWITCH_PROBABILITY:
                self.switch(not self.on)
            if self.broker.running:
                key = KEY_PREFIX + b"%d" % self._rng.randrange(DEVICES)
                counters = self.published[key]
                if self.broker.publish(self._topic_prefix + key.decode(), b"%d" % len(counters)):
                    counters.append(len(counters))
                    self._subscribed_publications += self.on
                elif self._subscribed_publications >= 2:
                    raise InvariantViolationError(f"{key!r} #{len(counters)} has its PUBACK, and nobody keeps it")
                else:
                    self.discarded += 1
                if self._rng.random() < DROP_PROBABILITY:
                    # The leader has taken it, and is not heard any more when it says so: it comes again.
                    await asyncio.sleep(self._rng.uniform(0, 0.01))
                    self.broker.drop(self.session_name(0))
