"""A program that stores a source under a name, ends at any moment or failure, and continues at its source position.

Meanwhile other programs open more anonymous producers than a shard keeps.
"""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from headgate import Delivery, Producer
from headgate.client.connection import Client
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import DeliveryFailedError, DeliveryUnknownError, NoLeaderError
from headgate.protocol.requests import OpenProducer

IMPORT_NAME: Final = "import-1"
IMPORT_KEY: Final = b"import"
"""Key of its records; their values count from 0."""
MAX_PRODUCERS: Final = 15
"""Anonymous producers that a shard keeps: more than run, fewer than are opened in ten seconds."""


class ImportProgram:
    """The runs of the program, one after the other, and the anonymous producers beside it."""

    def __init__(
        self,
        rng: random.Random,
        new_client: Callable[[str], Client],
        topic: str,
        pause: Callable[[random.Random, float, float], Awaitable[None]],
        shard: int,
    ) -> None:
        """``shard``: that of ``topic``."""
        self._rng = rng
        self._new_client = new_client
        self._topic = topic
        self._pause = pause
        self._shard = shard
        self._window = rng.choice((0, 20))
        """Records that it sends before it waits for the first one."""

    async def run(self) -> None:
        """Start the program again whenever it has ended, until cancelled."""
        settings = ProducerSettings(request_timeout_seconds=2, delivery_timeout_seconds=self._rng.choice((6, 20)))
        for run in itertools.count():
            with suppress(TimeoutError, NoLeaderError, DeliveryFailedError, DeliveryUnknownError):
                async with (
                    asyncio.timeout(self._rng.uniform(1, 20)),
                    Producer(self._new_client(f"import-{run}"), name=IMPORT_NAME, settings=settings) as producer,
                ):
                    await self._import(producer)

    async def _import(self, producer: Producer) -> None:
        await producer.open(self._topic)
        first = 0 if producer.source_position is None else int(producer.source_position)
        sent: deque[Delivery] = deque()
        try:
            for number in itertools.count(first):
                position = b"%d" % (number + 1)
                sent.append(await producer.send(self._topic, IMPORT_KEY, b"%d" % number, source_position=position))
                await self._pause(self._rng, 0, 0.5)
                if len(sent) > self._window:
                    await sent.popleft()
        except (DeliveryFailedError, DeliveryUnknownError):
            await producer.flush()
            raise

    async def open_anonymous(self) -> None:
        """Open anonymous producers, until cancelled."""
        async with self._new_client("anonymous") as client:
            while True:
                opening = OpenProducer(token=client.new_token())
                with suppress(NoLeaderError):
                    await client.request(self._shard, opening, timeout_seconds=5)
                await self._pause(self._rng, 0.1, 0.5)
