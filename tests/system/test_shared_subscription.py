"""Two `consume` processes of one subscription while the topic is split and merged under load."""

import json
from typing import Any

import pytest

from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS, jsonl, wait_until, whole_lines

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

KEYS = 40
BATCH = 400


class Feed:
    """One long-running `produce`, and the number of records sent to it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.fed = 0
        self._input: Any = None
        self.process: Any = None

    async def begin(self) -> None:
        self.process = await self.node.commands.start("feed", "produce", "shared", "--key-field", "id", piped=True)
        self._input = self.process.stdin

    async def feed(self) -> None:
        """Write the next records to its input; the counter of each key rises."""
        self._input.write(jsonl({"id": f"k{n % KEYS}", "n": n} for n in range(self.fed, self.fed + BATCH)))
        await self._input.drain()
        self.fed += BATCH

    async def end(self) -> None:
        self._input.close()
        assert await self.process.ended(30) == 0, self.process.errors()
        assert f"stored {self.fed}, failed 0" in self.process.errors()


async def test_two_consumers_share_segments_and_keep_order_across_splits_and_merges(node: Node):
    # Both print into one file, which shows the order across consumers.
    printed = node.folder / "shared.out"
    await node.commands.succeed("topic", "create", "shared", "--segments", "2")
    consumers = [
        await node.commands.start(
            name, *("consume", "shared", "billing", "--from", "earliest", "--consumer", name), out=printed
        )
        for name in ("one", "two")
    ]

    async def described() -> dict[str, Any]:
        return (await node.commands.succeed("subscription", "describe", "shared", "billing", "--json")).document()

    async def both_read() -> bool:
        found = await node.commands.finish("subscription", "describe", "shared", "billing", "--json")
        return found.code == 0 and [1, 1] == [len(each["segments"]) for each in found.document()["consumers"]]

    await wait_until(both_read, "each consumer reads one segment")
    feed = Feed(node)
    await feed.begin()
    await feed.feed()
    await node.commands.succeed("topic", "split", "shared", "0")
    await feed.feed()

    await wait_until(lambda: 2 in segments(printed), "a child of the split is read", 90)
    await node.commands.succeed("topic", "merge", "shared", "3", "1")
    await feed.feed()
    await wait_until(lambda: 4 in segments(printed), "the child of the merge is read", 90)
    await feed.end()
    await consumers[0].until_printed(feed.fed)

    async def one_each() -> bool:
        return [1, 1] == [len(each["segments"]) for each in (await described())["consumers"]]

    await wait_until(one_each, "each consumer holds one of the remaining two segments")
    assert [143, 143] == [await consumer.terminate() for consumer in consumers]
    records = [json.loads(line) for line in whole_lines(printed)]
    assert list(range(feed.fed)) == sorted(record["value"]["n"] for record in records)
    order: dict[str, list[int]] = {}
    for record in records:
        order.setdefault(record["key"], []).append(record["value"]["n"])
    assert all(numbers == sorted(numbers) for numbers in order.values())
    topic = (await node.commands.succeed("topic", "describe", "shared", "--json")).document()
    positions = {segment["segment"]: [] for segment in topic["segments"]}
    for position, record in enumerate(records):
        positions[record["segment"]].append(position)
    for segment in topic["segments"]:
        for parent in segment["parents"]:
            assert max(positions[parent], default=-1) < min(positions[segment["segment"]], default=len(records))
    assert await node.consume("shared", "billing") == [], "everything was acknowledged"


def segments(printed: Any) -> set[int]:
    return {json.loads(line)["segment"] for line in whole_lines(printed)}
