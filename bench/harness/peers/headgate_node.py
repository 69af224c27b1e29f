"""headgate: a daemon with one shard, mosquitto, ZooKeeper, and a ledger in a folder."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.harness.cluster import SEGMENTS, BenchCluster
from bench.harness.peers.peer import AT_ONCE, KEYS, START_SECONDS
from headgate import Admin, Client, Consumer, Producer


class PEER:
    """Sends batches with one producer; receives with `get_many` over an open connection, as from Redis and NATS."""

    async def start(self, stack: AsyncExitStack, _folder: Path, streams: Sequence[str]) -> None:
        config = (await stack.enter_async_context(BenchCluster())).client_config()
        self._producer = await stack.enter_async_context(Producer(config))
        self._client = await stack.enter_async_context(Client.from_config(config, "consumer", with_store=True))
        self._names = (f"s{number}" for number in itertools.count())
        async with Admin(config) as admin:
            for stream in streams:
                await admin.create_topic(stream, segments=SEGMENTS)

    async def send(self, stream: str, values: Sequence[bytes]) -> None:
        keys = list(itertools.islice(itertools.cycle(map(str.encode, KEYS)), len(values)))
        await (await self._producer.send_many(stream, keys, values))

    async def receive(self, stream: str, on_records: Callable[[int], None], *, new: bool) -> None:
        how: Any = {"type": "STREAM", "start": "latest"} if new else {"type": "CHECKPOINT", "start": "earliest"}
        async with Consumer(self._client, topic=stream, subscription=next(self._names), **how) as consumer:
            while True:
                on_records(len([(r.key, r.value) for r in await consumer.get_many(AT_ONCE, START_SECONDS)]))
