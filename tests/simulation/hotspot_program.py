"""Topics that are busy where a split does not help, or is not allowed: some simulated worlds that scale.

* ``hot``: one key has all records.
* ``narrow``: so has the single hash of a segment, after sixteen splits.
* ``deep``: a reader has not read eight generations before the busy segment.
* ``full``: the topic has as many segments as a layout may have.

What the leader may change of them is checked for each entry (`tests.simulation.ledger_rules`).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from itertools import count, cycle, islice
from typing import TYPE_CHECKING, Final

from headgate import Admin, Consumer, Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import HeadgateError
from headgate.model.entries import TopicPolicy
from headgate.model.layout import segment_hash
from tests.simulation.queue_program import until_done

if TYPE_CHECKING:
    from headgate.model.layout import Segment
    from tests.simulation.world import ClusterSimulation

KEY: Final = b"hot"
SPLITS: Final = {"hot": 0, "narrow": 16, "deep": 8, "full": 20}
"""How often a topic is split, all but ``full`` where `KEY` is."""
MOST_SEGMENTS: Final = 41
"""Of a layout, in these worlds."""
KEYS: Final = 40
LOAD: Final = 3.0
"""As a multiple of the load above which a segment is split."""
PAUSE_SECONDS: Final = 0.6
"""Between batches: longer than between two samples of keys."""
POLICY: Final = TopicPolicy(auto_split=True, auto_merge=False, max_segments=1024, max_age_ms=-1, max_bytes=-1)
SETTINGS: Final = ProducerSettings(linger_seconds=0.05, request_timeout_seconds=2, delivery_timeout_seconds=20)


class HotspotProgram:
    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._values = count()

    async def start(self, rng: random.Random) -> None:
        """Make two of the topics, and load them until the faults end."""
        async with (
            self._world.client("hotspots") as client,
            Admin(client, timeout_seconds=60) as admin,
            Producer(client, settings=SETTINGS) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            for kind in rng.sample(sorted(SPLITS), 2):
                tasks.create_task(self._run(kind, admin, producer))

    async def _run(self, kind: str, admin: Admin, producer: Producer) -> None:
        await until_done(lambda: admin.create_topic(kind))
        await until_done(lambda: admin.set_topic_policy(kind, POLICY))
        await until_done(lambda: admin.create_subscription(kind, "idle", type="STREAM", start="earliest"))
        while len(self._active(kind)) <= SPLITS[kind]:
            with suppress(HeadgateError):
                await producer.send_and_wait(kind, KEY, b"%d" % next(self._values))  # So that it is undrained.
                widest = max(self._active(kind), key=lambda each: each.last_hash - each.first_hash)
                await admin.split(kind, (widest if kind == "full" else self._busy(kind)).segment_id)
        self._world.log("hotspots", f"{kind} becomes busy")
        async with AsyncExitStack() as stack:
            if kind == "deep":
                idle = Consumer(self._world.client("idle"), topic=kind, subscription="idle", type="STREAM")
                with suppress(HeadgateError):
                    await stack.enter_async_context(idle)
            await self._load(kind, producer)

    async def _load(self, topic: str, producer: Producer) -> None:
        """Send more than a segment may have, of one key or of many of one segment."""
        records = round(LOAD * self._world.settings.scaling.split_records_per_second * PAUSE_SECONDS)
        busy, keys = None, [KEY]
        while True:
            if topic in ("deep", "full") and busy != self._busy(topic).hash_range:
                busy = self._busy(topic).hash_range
                names = (b"%d" % each for each in count())
                keys = list(islice((key for key in names if self._busy(topic, key) == self._busy(topic)), KEYS))
            with suppress(HeadgateError):
                for key in islice(cycle(keys), records):
                    await producer.send(topic, key, b"%d" % next(self._values))
            await asyncio.sleep(PAUSE_SECONDS)

    def _active(self, topic: str) -> list[Segment]:
        states = self._world.checker.states.values()
        return next(each.topics[topic].layout.active() for each in states if topic in each.topics)

    def _busy(self, topic: str, key: bytes = KEY) -> Segment:
        """Return the active segment of a key."""
        hashed = segment_hash(key)
        return next(each for each in self._active(topic) if each.first_hash <= hashed <= each.last_hash)
