"""Redis streams. The server syncs its file before it answers; the client parses with hiredis."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import hiredis  # noqa: F401 - redis parses in Python without it, in several times as long
from redis.asyncio import Redis

from bench.harness.peers.peer import AT_ONCE, KEYS, start_server
from controller.local.reserved_port import LOOPBACK, ReservedPort


class PEER:
    """Sends pipelines of ``XADD``, and receives with ``XREAD``."""

    async def start(self, stack: AsyncExitStack, folder: Path, _streams: Sequence[str]) -> None:
        port = stack.enter_context(ReservedPort()).number
        options = {"port": port, "bind": LOOPBACK, "dir": folder, "save": "", "appendonly": "yes"}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        await start_server(stack, folder, port, "redis-server", *arguments, "--appendfsync", "always")
        self._client = await stack.enter_async_context(Redis(host=LOOPBACK, port=port, socket_timeout=None))

    async def send(self, stream: str, values: Sequence[bytes]) -> None:
        keys = itertools.cycle(KEYS)
        for first in range(0, len(values), AT_ONCE):
            pipeline = self._client.pipeline(transaction=False)
            for value in values[first : first + AT_ONCE]:
                pipeline.xadd(stream, {"k": next(keys), "v": value})
            await pipeline.execute()

    async def receive(self, stream: str, on_records: Callable[[int], None], *, new: bool) -> None:
        last = "$" if new else "0"
        while True:
            answer = await self._client.xread({stream: last}, count=AT_ONCE, block=0)
            ((_, records),) = answer.items() if isinstance(answer, dict) else answer
            last = records[-1][0]
            on_records(len([(record[b"k"], record[b"v"]) for _, record in records]))
