"""The driver of the Python client. Commands and answers: docs/write-a-client.md."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headgate import (
    ClientConfig,
    ConsumedRecord,
    Consumer,
    DeliveryFailedError,
    DeliveryUnknownError,
    HeadgateError,
    Producer,
    RequestRejectedError,
)
from headgate.model.layout import key_bucket, key_hash, shard_of

Answer = dict[str, Any]


def error_word(error: Exception) -> str:
    """Return the word of an error: a verdict, or what is known of a record."""
    if isinstance(error, RequestRejectedError):
        return error.verdict
    words: dict[type[Exception], str] = {DeliveryFailedError: "not_stored", DeliveryUnknownError: "unknown"}
    return words.get(type(error), "other")


class Driver:
    """Each method is a command. One that returns a function has begun, and the function waits for the rest."""

    config: ClientConfig
    producer: Producer | None = None
    consumer: Consumer

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], ConsumedRecord] = {}

    async def start(self, host: str, port: int, cluster: str, ledger: str) -> Answer:
        self.config = ClientConfig(cluster, host, port, Path(ledger).as_uri())
        return {}

    async def hash(self, key: str, shards: int, buckets: int) -> Answer:
        raw = bytes.fromhex(key)
        try:
            shard = str(shard_of(raw.decode(), shards))
        except UnicodeDecodeError:
            shard = ""  # no name of a topic
        return {"hash": str(key_hash(raw)), "bucket": str(key_bucket(raw, buckets)), "shard": shard}

    async def send(
        self, topic: str, key: str, value: str, headers: list[list[str]] | None = None
    ) -> Callable[[], Awaitable[Answer]]:
        if self.producer is None:
            self.producer = await Producer(self.config).__aenter__()
        pairs = [(name, bytes.fromhex(content)) for name, content in headers or []]
        delivery = await self.producer.send(topic, bytes.fromhex(key), bytes.fromhex(value), headers=pairs)

        async def outcome() -> Answer:
            stored = await delivery
            return {"segment": text(stored.segment), "offset": text(stored.offset)}

        return outcome

    async def open(self, **options: Any) -> Answer:
        if "consumer" in options:
            options["name"] = options.pop("consumer")
        self.consumer = await Consumer(self.config, **options).__aenter__()
        return {}

    async def receive(
        self, count: int, seconds: float = 0.0, *, acknowledging: bool = False
    ) -> Callable[[], Awaitable[Answer]]:
        async def receive() -> Answer:
            found: list[ConsumedRecord] = []
            until = asyncio.get_running_loop().time() + seconds
            while len(found) < count:
                left = until - asyncio.get_running_loop().time() if seconds else 3600.0
                if left <= 0:
                    break
                records = await self.consumer.get_many(count - len(found), left)
                for each in records if acknowledging else ():
                    await self.consumer.acknowledge(each)
                found += records
            self.records |= {(str(each.segment), str(each.offset)): each for each in found}
            return {"records": [shown(each) for each in found]}

        return receive

    async def acknowledge(self, segment: str, offset: str) -> Answer:
        await self.consumer.acknowledge(self.records[segment, offset])
        return {}

    async def reject(self, segment: str, offset: str) -> Answer:
        await self.consumer.negative_acknowledge(self.records[segment, offset], reason="a case says so")
        return {}

    async def extend(self, segment: str, offset: str, seconds: float) -> Answer:
        await self.consumer.extend(self.records[segment, offset], seconds)
        return {}

    async def park(self, segment: str, offset: str) -> Answer:
        await self.consumer.park(self.records[segment, offset], reason="a case says so")
        return {}

    async def flush(self) -> Answer:
        await self.consumer.flush()
        return {}

    async def late(self) -> Answer:
        return {"count": str(self.consumer.metrics().rejected_acknowledgements)}

    async def positions(self) -> Answer:
        return {"positions": self.consumer.positions}

    async def close(self) -> Answer:
        await self.consumer.close()
        return {}


def text(number: int | None) -> str | None:
    return None if number is None else str(number)


def shown(record: ConsumedRecord) -> Answer:
    return {
        "segment": str(record.segment),
        "offset": str(record.offset),
        "key": record.key.hex(),
        "value": record.value.hex(),
        "headers": [[name, value.hex()] for name, value in record.headers],
        "delivery": str(record.delivery_count),
        "parked": str(record.parked_number),
    }


async def attempt(method: Callable[..., Awaitable[Any]], **options: Any) -> Any:
    try:
        return await method(**options)
    except (HeadgateError, ValueError, TypeError, KeyError) as error:
        return {"error": error_word(error), "text": f"{type(error).__name__}: {error}"}


async def main() -> None:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    driver, waiting = Driver(), set[asyncio.Task[None]]()

    async def answer(number: int, begun: Any) -> None:
        result = await attempt(begun) if callable(begun) else begun
        print(json.dumps({"id": number, **result}), flush=True)

    while line := await reader.readline():
        command = json.loads(line)
        number, method = command.pop("id"), getattr(driver, command.pop("do"), None)
        begun = {"unsupported": True} if method is None else await attempt(method, **command)
        waiting.add(task := asyncio.create_task(answer(number, begun)))
        task.add_done_callback(waiting.discard)


if __name__ == "__main__":
    asyncio.run(main())
