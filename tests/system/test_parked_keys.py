"""A stream with a poison record, on real servers: its key is parked by `run`, and is resumed in order after a split."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Admin, ConsumedRecord, Consumer, RetryPolicy
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, jsonl, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]
KEYS, POISON, DROPPED = [f"k{n}" for n in range(8)], "k3", "k5"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Running servers, a daemon, and Spark, which tells what is drained."""
    async with Cluster(tmp_path) as made:
        await made.start_servers()
        await made.start_spark()
        await (await made.start_daemon("first")).until_leading()
        yield made


@pytest.mark.nightly
async def test_a_parked_key_is_resumed_in_order_after_a_split(cluster: Cluster) -> None:
    """Its records are parked in the parent and in the child, and others arrive while it is being resumed."""
    commands, handled, spared = cluster.commands, list[tuple[str, int]](), set[str]()

    async def produce(first: int) -> None:
        lines = jsonl({"id": KEYS[n % len(KEYS)], "n": n} for n in range(first, first + 80))
        await commands.succeed("produce", "orders", "--key-field", "id", stdin=lines)

    async def handle(record: ConsumedRecord) -> None:
        key = record.key.decode()
        if key in {POISON, DROPPED} - spared:
            raise ValueError("poison")
        handled.append((key, json.loads(record.value)["n"]))

    async def parked() -> list[Any]:
        return (await commands.succeed("subscription", "parked", "orders", "billing", "--json")).document()

    def values(key: str) -> list[int]:
        return [n for found, n in handled if found == key]

    async def until(records: int, **keys: int) -> None:
        """Wait until so many records are handled, and so many of each of ``keys`` are parked."""

        async def done() -> bool:
            return len(handled) >= records and {each["key"]: each["records"] for each in await parked()} == keys

        await wait_until(done, lambda: f"{records} are handled, {keys} are parked: {len(handled)} are", 120)

    await commands.succeed("topic", "create", "orders")
    await commands.succeed("topic", "create", "dead")
    async with Admin(cluster.client_config()) as admin:
        await admin.create_subscription("orders", "billing", start="earliest")
        await commands.succeed("subscription", "set", "orders", "billing", "--dead-letter", "dead")
        async with Consumer(cluster.client_config(), topic="orders", subscription="billing") as consumer:
            retry = RetryPolicy(attempts=2, first_pause_seconds=0.01, longest_pause_seconds=0.01, then="park")
            run = asyncio.create_task(consumer.run(handle, concurrency=4, retry=retry))
            await produce(0)
            await until(60, k3=10, k5=10)
            await admin.split("orders", 0)
            await produce(80)
            await until(120, k3=20, k5=20)
            spared |= {POISON, DROPPED}
            await commands.succeed("subscription", "drop", "orders", "billing", DROPPED, "--yes")
            await commands.succeed("subscription", "resume", "orders", "billing", POISON)
            await produce(160)
            await until(220)
            consumer.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await run
    assert [*range(3, 240, 8)] == values(POISON)
    assert [*range(165, 240, 8)] == values(DROPPED)
    for key in {*KEYS} - {POISON, DROPPED}:
        assert [*range(KEYS.index(key), 240, 8)] == values(key)
