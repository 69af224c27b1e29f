"""A worker of a queue that is killed by one record, on real servers: three deliveries, and then a dead letter."""

import json
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate import Admin, Consumer
from headgate.model.headers import origin_of
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, jsonl, wait_until, whole_lines

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(TEST_SECONDS)]

WORKER = """
import asyncio, os, signal, sys
from headgate import Consumer, load_client_config

async def main():
    config = load_client_config(sys.argv[-1])
    async with Consumer(config, topic="orders", subscription="jobs", type="QUEUE", name="worker") as jobs:
        async for job in jobs:
            print(job.value.decode(), job.delivery_count, flush=True)
            if job.key == b"poison":
                os.kill(os.getpid(), signal.SIGKILL)
            if job.key == b"unlucky" and job.delivery_count == 1:
                await jobs.negative_acknowledge(job, delay_seconds=1, reason="try again")
            else:
                await jobs.acknowledge(job)

asyncio.run(main())
"""
KEYS = ["first", "unlucky", "poison", *(f"k{n}" for n in range(20))]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        await made.start_leader("first")
        await made.start_daemon("second")
        yield made


async def test_a_record_that_kills_its_worker_is_a_dead_letter_after_three_deliveries(cluster: Cluster, tmp_path: Path):
    """One worker after the other takes the name over. The leader is killed between two of them."""
    script, commands = tmp_path / "worker.py", cluster.commands
    script.write_text(textwrap.dedent(WORKER))
    await commands.succeed("topic", "create", "orders")
    await commands.succeed("topic", "create", "dead")
    async with Admin(cluster.client_config()) as admin:
        await admin.create_subscription("orders", "jobs", type="QUEUE", start="earliest")
    policy = ("--max-deliveries", "3", "--dead-letter", "dead")
    await commands.succeed("subscription", "set", "orders", "jobs", *policy)
    lines = jsonl({"id": key, "n": n} for n, key in enumerate(KEYS))
    await commands.succeed("produce", "orders", "--key-field", "id", stdin=lines)

    outputs = [tmp_path / f"worker-{number}.txt" for number in range(4)]
    for number, output in enumerate(outputs[:3]):
        if number == 1:
            await cluster.daemons[await cluster.leader()].process.kill()
        worker = await commands.start_script(script, out=output)
        assert -9 == await worker.ended(60), worker.errors()
    last = await commands.start_script(script, out=outputs[3])

    async def settled() -> bool:
        described = (await commands.succeed("subscription", "describe", "orders", "jobs", "--json")).document()
        return sum(each["unacknowledged"] for each in described["segments"]) == 0

    await wait_until(settled, lambda: f"all is acknowledged: {[whole_lines(each) for each in outputs]}", 60)
    handled = [line.rpartition(" ") for each in outputs for line in whole_lines(each)]
    poison = [int(count) for value, _, count in handled if json.loads(value)["id"] == "poison"]
    assert [1, 2, 3] == poison
    assert set(KEYS) == {json.loads(value)["id"] for value, _, _ in handled}

    options = {"topic": "dead", "subscription": "check", "start": "earliest"}
    async with Consumer(cluster.client_config(), **options) as consumer:
        dead = [record async for record in consumer.until_caught_up()]
    assert [b"poison"] == [each.key for each in dead]
    assert {"n": 2, "id": "poison"} == json.loads(dead[0].value)
    origin = origin_of(dead[0].headers)
    assert ("orders", "jobs", 3) == (origin.topic, origin.subscription, origin.deliveries)
    assert origin.reason.startswith("its consumer worker was lost")

    await last.terminate()
    command = "subscription", "dead-letters", "orders", "jobs"
    (letter,) = (await commands.succeed(*command, "--json")).document()
    assert ("poison", 3) == (letter["key"], letter["deliveries"])
    assert "dry run: would be dropped: 1" in (await commands.succeed(*command, "--drop", "--dry-run")).err
    assert [1, 0] == [
        (await commands.succeed(*command, "--replay", "--json")).document()["sent_back"] for _ in range(2)
    ]
    sent_back = await commands.succeed("read", "orders", "--key", "poison")
    assert 2 == len(sent_back.records())
    assert "no dead letters are open in dead" in (await commands.succeed(*command)).err
