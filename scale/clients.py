"""``python -m scale.clients``: one process of generated clients, which a trial starts.

Standard input has one order per line, as JSON; each is answered by one line, in turn. During a long order, lines with
only ``done`` and ``of`` precede the answer. A failure ends the process, with one line on standard error. The process
has the clients of its share of the shards. Consumers of one shard share a connection, because the broker sends each new
chunk of a shard to each connection with consumers of the shard:

* ``join``: enter this process's consumers; they stay.
* ``state``: what the consumers hold now.
* ``open``: open this process's producer identities.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.harness.logs import log_to_standard_error
from headgate.client.connection import Client
from headgate.errors import HeadgateError
from headgate.model.hashing import shard_of
from headgate.process.background import cancel_and_wait
from headgate.protocol import messages as m
from headgate.settings.config import ClientConfig, load_client_config
from scale.generated_consumer import GeneratedConsumer
from scale.sizes import SUBSCRIPTION, Sizes, share, topic_name, topic_of

TIMEOUT_SECONDS: Final = 120.0
"""For one registration or opening: daemons that are restored answer late."""
JOINING: Final = 8
"""Consumers of one process that register at the same time. Each makes others confirm up to a hundred revocations, one
request each; with 64 more than ten thousand requests waited, longer than clients do."""
MAX_FAILED: Final = 0.01
"""Part of a process's openings that may fail before its trial ends: a few show that leaders are overloaded."""
PROGRESS_SECONDS: Final = 10.0
"""Between two lines with progress."""

Notify = Callable[[dict[str, Any]], None]


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the clients a process generates."""

    sizes: dict[str, int]
    number: int
    processes: int
    connections: int
    """Of this process."""
    in_flight: int
    """Openings of this process that are under way at the same time."""


class GeneratedClients:
    """The clients of one process."""

    def __init__(self, shares: Shares, clients: list[Client], notify: Notify) -> None:
        """``notify``: takes the progress of a long order."""
        self._shares = shares
        self._notify = notify
        self._sizes = Sizes(**shares.sizes)
        self._shards = share(self._sizes.shards, shares.processes, shares.number)
        self._clients = clients
        self._consumers: list[GeneratedConsumer] = []

    async def join(self) -> dict[str, Any]:
        """Enter all consumers of this process; return how long each took."""
        sizes, mine = self._sizes, self._shards
        topics = [topic_name(topic_of(sizes, number)) for number in range(sizes.consumers)]
        wanted = ((number, topic, shard_of(topic, sizes.shards)) for number, topic in enumerate(topics))
        joining = iter([each for each in wanted if each[2] in mine])
        took_ms: list[float] = []

        async def enter_some() -> None:
            for number, topic, shard in joining:
                consumer = GeneratedConsumer(
                    self._clients[(shard - mine.start) % len(self._clients)],
                    topic=topic,
                    subscription=SUBSCRIPTION,
                    name=f"consumer-{number:05d}",
                    connect_timeout_seconds=TIMEOUT_SECONDS,
                )
                began = asyncio.get_running_loop().time()
                await consumer.__aenter__()
                took_ms.append(1000 * (asyncio.get_running_loop().time() - began))
                self._consumers.append(consumer)

        async with self._progress(took_ms, sum(shard_of(topic, sizes.shards) in mine for topic in topics)):
            await _at_once(JOINING, enter_some)
        return {"took_ms": took_ms}

    async def state(self) -> dict[str, Any]:
        """Return what the consumers hold, and when the last one registered."""
        return {
            "consumers": len(self._consumers),
            "segments": sum(each.held_segments for each in self._consumers),
            "idle": sum(not each.held_segments for each in self._consumers),
            "registrations": sum(each.registrations for each in self._consumers),
            "registered_at_ns": max((each.registered_at_ns for each in self._consumers), default=0),
        }

    async def open(self) -> dict[str, Any]:
        """Open all producer identities of this process, shard by shard; return how long each took.

        Raises HeadgateError: more than `MAX_FAILED` of them failed.
        """
        took_ms: list[float] = []
        failures: list[HeadgateError] = []
        openings = self._openings()
        count = sum(len(share(self._sizes.producers, self._sizes.shards, shard)) for shard in self._shards)

        async def open_some() -> None:
            for client, shard in openings:
                request = m.OpenProducer(token=client.new_token())
                began = asyncio.get_running_loop().time()
                try:
                    await client.request(shard, request, TIMEOUT_SECONDS)
                except HeadgateError as error:
                    failures.append(error)
                    if len(failures) > MAX_FAILED * count:
                        reason = f"{len(failures)} of {count} openings failed, after {len(took_ms)} that did not; "
                        raise HeadgateError(f"{reason}the last one: {error}") from error
                else:
                    took_ms.append(1000 * (asyncio.get_running_loop().time() - began))

        async with self._progress(took_ms, count):
            await _at_once(self._shares.in_flight, open_some)
        shown = took_ms[:: max(1, len(took_ms) // 10_000)]
        return {"took_ms": shown, "opened": len(took_ms), "failed": len(failures)}

    @asynccontextmanager
    async def _progress(self, done: list[float], count: int) -> AsyncIterator[None]:
        async def notify_regularly() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                self._notify({"done": len(done), "of": count})

        notifying = asyncio.get_running_loop().create_task(notify_regularly())
        try:
            yield
        finally:
            await cancel_and_wait(notifying)

    def _openings(self) -> Iterator[tuple[Client, int]]:
        """Yield (client, shard) of each identity, shard by shard."""
        for shard in self._shards:
            for each in share(self._sizes.producers, self._sizes.shards, shard):
                yield self._clients[each % len(self._clients)], shard


async def _at_once(count: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(work())


async def _serve(config: ClientConfig, shares: Shares) -> None:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client.from_config(config, f"generated-{shares.number}-{number}"))
            for number in range(shares.connections)
        ]
        generated = GeneratedClients(shares, clients, _answer)
        orders = {"join": generated.join, "state": generated.state, "open": generated.open}
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        _answer({"ready": len(clients)})
        while line := await reader.readline():
            _answer(await orders[json.loads(line)["do"]]())


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read the arguments: the client's configuration file, and `Shares` as JSON."""
    log_to_standard_error()
    path, shares = sys.argv[1:]
    try:
        asyncio.run(_serve(load_client_config(Path(path)), msgspec.json.decode(shares, type=Shares)))
    except* HeadgateError as errors:
        sys.stderr.write(f"scale.clients: {errors.exceptions[0]}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
