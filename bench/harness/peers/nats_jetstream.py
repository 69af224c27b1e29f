"""NATS JetStream in files. The server answers before the operating system has written them."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import nats
from nats.js.api import DeliverPolicy

from bench.harness.peers.peer import AT_ONCE, KEYS, start_server
from controller.local.reserved_port import LOOPBACK, ReservedPort


class PEER:
    """A record's subject ends with its key. Publishes without waiting, and receives with an ordered consumer."""

    async def start(self, stack: AsyncExitStack, folder: Path, streams: Sequence[str]) -> None:
        port = stack.enter_context(ReservedPort()).number
        where = ("--addr", LOOPBACK, "--port", str(port), "--store_dir", str(folder))
        await start_server(stack, folder, port, "nats-server", "--jetstream", *where)
        connection = await nats.connect(f"nats://{LOOPBACK}:{port}")
        stack.push_async_callback(connection.close)
        self._jetstream = connection.jetstream(publish_async_max_pending=AT_ONCE)
        for stream in streams:
            await self._jetstream.add_stream(name=stream, subjects=[f"{stream}.*"])

    async def send(self, stream: str, values: Sequence[bytes]) -> None:
        for key, value in zip(itertools.cycle(KEYS), values, strict=False):
            await self._jetstream.publish_async(f"{stream}.{key}", value)
        await self._jetstream.publish_async_completed()

    async def receive(self, stream: str, on_records: Callable[[int], None], *, new: bool) -> None:
        policy = DeliverPolicy.NEW if new else DeliverPolicy.ALL
        received = await self._jetstream.subscribe(f"{stream}.*", ordered_consumer=True, deliver_policy=policy)
        async for _ in received.messages:
            on_records(1)
