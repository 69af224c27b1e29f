"""Two programs that use `Consumer.run` with concurrency while the topic is split, and one of them is killed."""

import json

import pytest

from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS, jsonl, wait_until, whole_lines

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

KEYS, BATCH = 40, 400
PROGRAM = """
import asyncio, json, os, random, sys
from pathlib import Path

from headgate import Consumer, RetryPolicy, load_client_config

failed = set()


async def handle(record):
    value = json.loads(record.value)
    os.write(1, b"%s\\n" % json.dumps({"by": sys.argv[1], "segment": int(record.segment), **value}).encode())
    await asyncio.sleep(random.uniform(0, 0.02))
    if value["n"] % 50 == 0 and value["n"] not in failed:
        failed.add(value["n"])
        raise OSError("the first attempt fails")


async def main():
    place = {"topic": "handled", "subscription": "billing", "name": sys.argv[1], "start": "earliest"}
    async with Consumer(load_client_config(Path(sys.argv[3])), **place) as consumer:
        report = await consumer.run(handle, concurrency=8, retry=RetryPolicy(first_pause_seconds=0.05))
        print("report", report.unhandled, file=sys.stderr)


asyncio.run(main())
"""


@pytest.mark.nightly
async def test_handlers_in_parallel_keep_the_order_of_keys_across_splits_and_a_kill(node: Node):
    printed, program = node.folder / "handled.out", node.folder / "handler.py"
    program.write_text(PROGRAM)
    await node.commands.succeed("topic", "create", "handled", "--segments", "2")

    async def store(first: int) -> None:
        records = jsonl({"id": f"k{n % KEYS}", "n": n} for n in range(first, first + BATCH))
        await node.commands.succeed("produce", "handled", "--key-field", "id", stdin=records)

    def handled() -> list[dict]:
        return [json.loads(line) for line in whole_lines(printed)]

    one, two = [await node.commands.start_script(program, name, out=printed) for name in ("one", "two")]
    await store(0)
    await wait_until(lambda: {"one", "two"} == {each["by"] for each in handled()}, "both programs have a segment")
    await node.commands.succeed("topic", "split", "handled", "0")
    await store(BATCH)
    await wait_until(lambda: 2 in {each["segment"] for each in handled()}, "a child of the split is read", 90)
    await node.commands.succeed("topic", "split", "handled", "1")
    await store(2 * BATCH)
    await one.kill()
    await node.commands.succeed("consumer", "evict", "handled", "billing", "one", "--yes")
    await store(3 * BATCH)
    await wait_until(
        lambda: set(range(4 * BATCH)) == {each["n"] for each in handled()}, "the other program handles the rest", 150
    )

    assert await two.terminate() == 0, two.errors()
    assert "report 0" in two.errors()
    seen: dict[str, list[int]] = {}
    for each in handled():
        numbers = seen.setdefault(each["id"], [])
        if each["n"] not in numbers:  # otherwise a retry, or what the killed program had not acknowledged
            assert not numbers or numbers[-1] < each["n"], f"{each} is first handled after {numbers[-1]}"
            numbers.append(each["n"])
    assert await node.consume("handled", "billing") == [], "everything was acknowledged"
