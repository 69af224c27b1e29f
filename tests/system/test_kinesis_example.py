"""examples/kinesis on a real node: a stream that is resharded while it is read is read in parent order.

The example's programs run as processes; a folder replaces AWS. The backlog is counted from the folder's files, which
the node is configured to read as tables.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headgate import Admin, BacklogInfo, load_client_config
from tests.support.servers.node import ANY_PORTS, Node
from tests.support.servers.programs import TEST_SECONDS, RunningProgram, get, metric, wait_until, whole_lines

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "kinesis"
KEYS = 24
COUNT_SECONDS = 0.5
"""Pause between two questions, each of which makes Spark count."""
SHARD = "shardId-{:012}".format


class Stream:
    """The example's stream, used as described in its README."""

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
    """One shard that was split before it is read: a closed parent and two children, all with records."""
    made = Stream(tmp_path / "stream")
    await made.do("create", "--shards", "1")
    await made.do("put", "--keys", str(KEYS), "--records", "3")
    await made.do("split", SHARD(0))
    await made.do("put", "--keys", str(KEYS), "--records", "3")
    return made


async def reader(node: Node, stream: Stream, topic: str, name: str) -> RunningProgram:
    arguments = (str(stream.folder), "--topic", topic, "--name", name)
    return await node.commands.start_script(
        EXAMPLE / "consumer.py", *arguments, out=node.folder / f"{topic}-{name}.jsonl"
    )


def delivered(node: Node, topic: str) -> list[dict[str, Any]]:
    """Return everything that was read, in order of time (one machine, one monotonic clock)."""
    lines = [line for path in node.folder.glob(f"{topic}-*.jsonl") for line in whole_lines(path)]
    return sorted((json.loads(line) for line in lines), key=lambda line: line["at_ns"])


async def until_delivered(node: Node, topic: str, count: int) -> None:
    """Wait until at least ``count`` records were read."""
    await wait_until(
        lambda: len(delivered(node, topic)) >= count, lambda: f"{len(delivered(node, topic))} of {count} are read", 60
    )


async def test_a_resharded_stream_is_read_in_parent_order_by_two_programs(node: Node, stream: Stream) -> None:
    listing = (await stream.do("list-shards")).encode()
    imported = await node.commands.succeed("topic", "import", "kinesis", "-", "--format", "kinesis", stdin=listing)
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
    assert {f"customer-{n}": list(range(1, 13)) for n in range(KEYS)} == by_key, "each key in order, no record twice"

    shards = await stream.shards()
    assert {SHARD(n) for n in range(6)} == shards.keys()
    spans = {shard: [line["at_ns"] for line in read if line["shard"] == shard] for shard in shards}
    assert all(spans.values()), "each shard had records"
    for name, shard in shards.items():
        for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId")):
            assert parent is None or max(spans[parent]) < min(spans[name]), f"{name} was read before {parent} was"

    described = (await node.commands.succeed("subscription", "describe", "kinesis", "billing", "--json")).document()
    assert ["drained"] * 3 == [segment["status"] for segment in described["segments"][:3]]
    again = await node.commands.succeed(
        "topic",
        "import",
        "kinesis",
        "-",
        "--format",
        "kinesis",
        stdin=json.dumps({"Shards": list(shards.values())}).encode(),
    )
    assert "no change" in again.err


async def test_the_successor_of_a_killed_reader_starts_at_its_checkpoint(node: Node, stream: Stream) -> None:
    first = await reader(node, stream, "kinesis-killed", "one")
    await until_delivered(node, "kinesis-killed", 6 * KEYS)
    described: dict[str, Any] = {}

    async def checkpointed() -> bool:
        nonlocal described
        described = (
            await node.commands.succeed("subscription", "describe", "kinesis-killed", "billing", "--json")
        ).document()
        # The reader acknowledges the last record of each page. A page is no larger than these shards.
        return all(segment["checkpoint"] for segment in described["segments"])

    await wait_until(checkpointed, lambda: f"every shard has a checkpoint: {described}")
    await first.kill()
    await stream.do("put", "--keys", str(KEYS), "--records", "1")
    second = await reader(node, stream, "kinesis-killed", "one")
    await until_delivered(node, "kinesis-killed", 7 * KEYS)
    await second.terminate()
    assert 7 * KEYS == len(delivered(node, "kinesis-killed")), "no checkpointed record is read again"


@pytest_asyncio.fixture(loop_scope="session")
async def counting(tmp_path: Path, stream: Stream, tls: bool) -> AsyncIterator[Node]:
    """A node with tables for the stream's records, and with an invalid table for another topic."""
    made = Node(tmp_path, tls=tls)
    rubbish = {"shard": SHARD(0), "sequence_number": None, "bytes": 1, "arrived_ms": 1}
    (tmp_path / "rubbish.jsonl").write_text(json.dumps(rubbish) + "\n")
    ours = (EXAMPLE / "external.toml").read_text().replace("/tmp/orders", str(stream.folder))
    theirs = ours.replace("orders.entries", "rubbish.entries").replace(
        f"{stream.folder}/shardId-*", f"{tmp_path}/rubbish"
    )
    (tmp_path / "external.toml").write_text(ours + theirs)
    try:
        await made.up("--external", str(tmp_path / "external.toml"), *ANY_PORTS)
        yield made
    finally:
        await made.clean_up()


@pytest_asyncio.fixture(loop_scope="session")
async def admin(counting: Node) -> AsyncIterator[Admin]:
    """Asks as often as it takes. A command each time would take the processor time that Spark needs to count."""
    async with Admin(load_client_config(counting.config)) as made:
        yield made


def left(found: list[BacklogInfo]) -> dict[str | None, int | None]:
    """Return label → records of the segments of the topic's one subscription."""
    return {segment.label: segment.records for info in found for segment in info.segments}


@pytest.mark.nightly
async def test_the_backlog_of_the_stream_is_counted_from_its_tables(
    counting: Node, admin: Admin, stream: Stream
) -> None:
    listing = (await stream.do("list-shards")).encode()
    for topic in ("orders", "rubbish"):
        await counting.commands.succeed("topic", "import", topic, "-", "--format", "kinesis", stdin=listing)
        first = await reader(counting, stream, topic, "one")
        await until_delivered(counting, topic, 6 * KEYS)
        await first.terminate()

    seen: dict[str | None, int | None] = {}

    async def counted(wanted: dict[str, int]) -> bool:
        nonlocal seen
        seen = left(await admin.backlog("orders"))
        return seen == wanted

    nothing = dict.fromkeys(map(SHARD, range(3)), 0)
    await wait_until(
        lambda: counted(nothing), lambda: f"the backlog is empty: {seen}", 60, interval_seconds=COUNT_SECONDS
    )
    before_ms = time.time_ns() // 1_000_000
    await stream.do("put", "--keys", str(KEYS), "--records", "2")
    put = {shard: len(whole_lines(stream.folder / f"{shard}.jsonl")) for shard in (SHARD(1), SHARD(2))}
    new = {SHARD(0): 0} | {
        shard: lines - sum(line["shard"] == shard for line in delivered(counting, "orders"))
        for shard, lines in put.items()
    }
    await wait_until(
        lambda: counted(new), lambda: f"the backlog is {new}; it is {seen}", 60, interval_seconds=COUNT_SECONDS
    )

    [found] = (await counting.commands.succeed("backlog", "orders", "--json")).document()
    assert new == {segment["label"]: segment["records"] for segment in found["segments"]}
    assert (found["records"], found["counted_by"]) == (2 * KEYS, "spark")
    assert found["size_bytes"] == 2 * KEYS, "each record is one digit"
    assert before_ms <= found["oldest_ms"] <= time.time_ns() // 1_000_000
    shown = await counting.commands.succeed("backlog", "orders", "--segments")
    assert "segment 1 shardId-000000000001" in shown.out

    async def faulty() -> bool:
        [broken] = await admin.backlog("rubbish")
        return broken.failing and list(left([broken]).values()) == [0, None, None]

    await wait_until(faulty, "the error of the other topic is reported", 60, interval_seconds=COUNT_SECONDS)
    result = await counting.commands.succeed("backlog")
    assert "rubbish could not be counted: external.rubbish.entries (" in result.err
    assert "sequence_number is null (1 times" in result.err

    status, body = await get(counting.http_address, "/api/v1/subscriptions?topic=orders")
    (summary,) = json.loads(body)["subscriptions"]
    assert (status, summary["backlog_records"]) == (200, 2 * KEYS)
    _, body = await get(counting.http_address, "/api/v1/subscriptions?topic=rubbish")
    (broken,) = json.loads(body)["subscriptions"]
    assert "sequence_number is null" in broken["unknown_reason"]
    _, page = await get(counting.http_address, f"/topics/rubbish/subscriptions/{broken['subscription']}")
    assert "sequence_number is null" in page
    await wait_until(_exports(counting, headgate_external_tables_failing=1), "the error is exported")
    await wait_until(_exports(counting, headgate_backlog_records=2 * KEYS), "the backlog is exported")
    assert "external_tables.failing" in (counting.data / "logs" / "daemon.log").read_text()


def _exports(node: Node, **wanted: float):
    async def exported() -> bool:
        return all([await metric(node.http_address, name) == value for name, value in wanted.items()])

    return exported
