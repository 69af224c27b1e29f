"""Seek a subscription while a `consume` process reads it, before and after a split."""

import json
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS, RunningProgram, jsonl, whole_lines

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

KEYS, BATCH = 20, 400


async def test_a_seek_delivers_everything_again_in_order_with_children_after_parents(node: Node):
    await node.commands.succeed("topic", "create", "moved")
    await produce(node, 0)
    reader = await node.commands.start("moved", "consume", "moved", "billing", "--from", "earliest")
    await until_printed(reader, BATCH)

    await seek(node, "--position", "0=100")
    await until_printed(reader, 2 * BATCH - 100)
    before_the_split = reader.output_path.stat().st_mtime
    await node.commands.succeed("topic", "split", "moved", "0")
    await produce(node, BATCH)
    total = 3 * BATCH - 100
    await until_printed(reader, total)

    moved = await seek(node, "--to", "earliest")
    assert [0, 0, 0] == [move["to_offset"] for move in moved["moves"]]
    await until_printed(reader, total + 2 * BATCH)
    await seek(node, "--to", datetime.fromtimestamp(before_the_split, UTC).isoformat())
    await until_printed(reader, total + 3 * BATCH)
    rejected = await node.commands.finish("subscription", "seek", "moved", "billing", "--position", "1=99999", "--yes")
    assert "99999 is beyond it: choose 0 to" in rejected.error_message()
    assert 143 == await reader.terminate()

    records = [json.loads(line) for line in whole_lines(reader.output_path)]
    parts = [(0, BATCH), (BATCH, 2 * BATCH - 100), (2 * BATCH - 100, total), (total, total + 2 * BATCH)]
    for begin, end in [*parts, (total + 2 * BATCH, len(records))]:
        order: dict[str, list[int]] = defaultdict(list)
        for record in records[begin:end]:
            order[record["key"]].append(record["value"]["n"])
        assert all(numbers == sorted(set(numbers)) for numbers in order.values())
    again = [record["segment"] for record in records[total : total + 2 * BATCH]]
    assert [0] * BATCH == again[:BATCH], "the whole parent first"
    assert {1, 2} == set(again[BATCH:])
    assert {1, 2} == {record["segment"] for record in records[total + 2 * BATCH :]}, "records stored since then"
    assert await node.consume("moved", "billing") == [], "everything was acknowledged"


async def produce(node: Node, first: int) -> None:
    lines = jsonl({"id": f"k{n % KEYS}", "n": n} for n in range(first, first + BATCH))
    await node.commands.succeed("produce", "moved", "--key-field", "id", stdin=lines)


async def seek(node: Node, *words: str) -> Any:
    return (
        await node.commands.succeed("subscription", "seek", "moved", "billing", *words, "--yes", "--json")
    ).document()


async def until_printed(reader: RunningProgram, count: int) -> None:
    """Wait for ``count`` lines, and check that there are no more."""
    await reader.until_printed(count, 60)
    assert len(reader.lines()) == count
