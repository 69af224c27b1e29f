"""examples/kinesis on a real node: a stream that is resharded under its readers is read in parent order.

The programs are those of the example, as processes; the stream is the example's folder in place of AWS.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.system.node import Node
from tests.system.programs import TEST_SECONDS, Running, eventually, whole_lines

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "kinesis"
KEYS = 24
SHARD = "shardId-{:012}".format


class Stream:
    """The example's stream, used as its README says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def do(self, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLE / "stream.py"), str(self.folder), *words),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, words
        return out.decode()

    async def shards(self) -> dict[str, dict[str, Any]]:
        return {shard["ShardId"]: shard for shard in json.loads(await self.do("list-shards"))["Shards"]}


@pytest.fixture
async def stream(tmp_path: Path) -> Stream:
    """One shard that was split before anybody reads: a closed parent and its two children, all with records."""
    made = Stream(tmp_path / "stream")
    await made.do("create", "--shards", "1")
    await made.do("put", "--keys", str(KEYS), "--records", "3")
    await made.do("split", SHARD(0))
    await made.do("put", "--keys", str(KEYS), "--records", "3")
    return made


async def reader(node: Node, stream: Stream, topic: str, name: str) -> Running:
    arguments = (str(stream.folder), "--topic", topic, "--name", name)
    return await node.program(EXAMPLE / "consumer.py", *arguments, out=node.folder / f"{topic}-{name}.jsonl")


def delivered(node: Node, topic: str) -> list[dict[str, Any]]:
    """Return everything that was read, in the order of time (one machine, one monotonic clock)."""
    lines = [line for path in node.folder.glob(f"{topic}-*.jsonl") for line in whole_lines(path)]
    return sorted((json.loads(line) for line in lines), key=lambda line: line["at_ns"])


async def until_delivered(node: Node, topic: str, count: int) -> None:
    """Wait until at least so many records were read."""
    await eventually(
        lambda: len(delivered(node, topic)) >= count, lambda: f"{len(delivered(node, topic))} of {count} are read", 60
    )


async def test_a_resharded_stream_is_read_in_parent_order_by_two_programs(node: Node, stream: Stream) -> None:
    listing = (await stream.do("list-shards")).encode()
    imported = await node.done("topic", "import", "kinesis", "-", "--format", "kinesis", stdin=listing)
    assert "external, positions are opaque" in imported.out
    programs = [await reader(node, stream, "kinesis", name) for name in ("one", "two")]
    await until_delivered(node, "kinesis", 6 * KEYS)
    await stream.do("split", SHARD(1))
    await stream.do("put", "--keys", str(KEYS), "--records", "3")
    await stream.do("merge", SHARD(4), SHARD(2))
    await stream.do("put", "--keys", str(KEYS), "--records", "3")
    await until_delivered(node, "kinesis", 12 * KEYS)
    assert [0, 0] == [await program.terminate() for program in programs]

    read = delivered(node, "kinesis")
    by_key: dict[str, list[int]] = defaultdict(list)
    for line in read:
        by_key[line["key"]].append(int(line["data"]))
    assert {f"customer-{n}": list(range(1, 13)) for n in range(KEYS)} == by_key, "each key in order, nothing twice"

    shards = await stream.shards()
    assert {SHARD(n) for n in range(6)} == shards.keys()
    spans = {shard: [line["at_ns"] for line in read if line["shard"] == shard] for shard in shards}
    assert all(spans.values()), "each shard had records"
    for name, shard in shards.items():
        for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId")):
            assert parent is None or max(spans[parent]) < min(spans[name]), f"{name} was read before {parent} was"

    described = (await node.done("subscription", "describe", "kinesis", "billing", "--json")).document()
    assert ["drained"] * 3 == [segment["status"] for segment in described["segments"][:3]]
    again = await node.done(
        "topic",
        "import",
        "kinesis",
        "-",
        "--format",
        "kinesis",
        stdin=json.dumps({"Shards": list(shards.values())}).encode(),
    )
    assert "nothing new" in again.err


async def test_a_reader_that_is_killed_is_followed_at_its_checkpoint(node: Node, stream: Stream) -> None:
    first = await reader(node, stream, "kinesis-killed", "one")
    await until_delivered(node, "kinesis-killed", 6 * KEYS)
    described: dict[str, Any] = {}

    async def checkpointed() -> bool:
        nonlocal described
        described = (await node.done("subscription", "describe", "kinesis-killed", "billing", "--json")).document()
        # It acknowledges the last record of each page, and reads in pages no larger than these shards.
        return all(segment["checkpoint"] for segment in described["segments"])

    await eventually(checkpointed, lambda: f"every shard has a checkpoint: {described}")
    await first.kill()
    await stream.do("put", "--keys", str(KEYS), "--records", "1")
    second = await reader(node, stream, "kinesis-killed", "one")
    await until_delivered(node, "kinesis-killed", 7 * KEYS)
    await second.terminate()
    assert 7 * KEYS == len(delivered(node, "kinesis-killed")), "nothing is read again that had been checkpointed"
