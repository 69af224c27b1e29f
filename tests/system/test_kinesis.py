"""examples/kinesis on a real node: a stream that is resharded while it is read is read in parent order.

The example's programs run as processes, and read from a server that speaks the API of Kinesis. The backlog is counted
from a copy of the stream as Firehose makes one, which the node is configured to read as a table.
"""

import itertools
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
import pytest_asyncio

from headgate import Admin, BacklogInfo, load_client_config
from tests.support.servers.kinesis_server import credentials, kinesis_client, kinesis_server
from tests.support.servers.node import ANY_PORTS, Node
from tests.support.servers.programs import (
    TEST_SECONDS,
    ClientCommands,
    RunningProgram,
    get,
    metric,
    wait_until,
    whole_lines,
)
from tests.support.servers.s3_server import s3_server

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "kinesis"
KEYS = 24
COUNT_SECONDS = 0.5
"""Pause between two questions, each of which makes Spark count."""
NAMES = itertools.count(1)
SHARD = "shardId-{:012}".format


class Stream:
    """A stream on the server, and its copy in a folder."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.environ = environ
        self.folder = folder
        self.name = f"orders-{next(NAMES)}"
        self.records = 0
        """Of each key; they are numbered from 1."""
        self.stored: list[tuple[str, str, str, int]] = []
        """Shard, sequence number, key and number of each."""
        self._client = kinesis_client(environ)
        folder.mkdir()
        self._change(self._client.create_stream, ShardCount=1)

    def put(self, records: int) -> None:
        """Store so many records of each key."""
        for number in range(self.records + 1, self.records + records + 1):
            given = [{"PartitionKey": f"customer-{n}", "Data": str(number).encode()} for n in range(KEYS)]
            answers = self._client.put_records(StreamName=self.name, Records=given)["Records"]
            for n, stored in enumerate(answers):
                shard, sequence = stored["ShardId"], stored["SequenceNumber"]
                self.stored.append((shard, sequence, f"customer-{n}", number))
                row = {"shard": shard, "sequence_number": sequence, "bytes": len(str(number)), "arrived_ms": now_ms()}
                with (self.folder / f"{shard}.jsonl").open("a") as copy:
                    copy.write(json.dumps(row) + "\n")
        self.records += records

    def split(self, shard: str) -> None:
        [hashes] = [each["HashKeyRange"] for each in self.shards() if each["ShardId"] == shard]
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2 + 1
        self._change(self._client.split_shard, ShardToSplit=shard, NewStartingHashKey=str(middle))

    def merge(self, first: str, second: str) -> None:
        self._change(self._client.merge_shards, ShardToMerge=first, AdjacentShardToMerge=second)

    def shards(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.list_shards(StreamName=self.name)["Shards"]
        return found

    def _change(self, change: Any, **arguments: Any) -> None:
        change(StreamName=self.name, **arguments)
        summary = self._client.describe_stream_summary
        while summary(StreamName=self.name)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
            time.sleep(0.02)  # As the waiters of boto3 do, which look every ten seconds.


def now_ms() -> int:
    return time.time_ns() // 1_000_000


server = kinesis_server


@pytest.fixture
def stream(server: dict[str, str], tmp_path: Path) -> Stream:
    """One shard that was split before it is read: a closed parent and two children, all with records."""
    made = Stream(server, tmp_path / "stream")
    made.put(3)
    made.split(SHARD(0))
    made.put(3)
    return made


async def reader(node: Node, stream: Stream, name: str, topic: str | None = None) -> RunningProgram:
    topic = topic or stream.name
    return await node.commands.start_script(
        *(EXAMPLE / "consumer.py", stream.name, "--topic", topic, "--name", name),
        out=node.folder / f"{topic}-{name}.jsonl",
        env=stream.environ,
    )


def delivered(node: Node, topic: str) -> list[dict[str, Any]]:
    """Return everything that was read, in order of time (one machine, one monotonic clock)."""
    lines = [line for path in node.folder.glob(f"{topic}-*.jsonl") for line in whole_lines(path)]
    return sorted((json.loads(line) for line in lines), key=lambda line: line["at_ns"])


async def until_delivered(node: Node, topic: str, count: int) -> None:
    """Wait until at least ``count`` different records were read."""

    def different() -> int:
        return len({(line["key"], line["data"]) for line in delivered(node, topic)})

    await wait_until(lambda: different() >= count, lambda: f"{different()} of {count} are read", 90)


async def test_a_resharded_stream_is_read_in_parent_order_though_a_program_is_killed(node: Node, stream: Stream):
    topic = stream.name
    programs = [await reader(node, stream, name) for name in ("one", "two")]
    await until_delivered(node, topic, 6 * KEYS)
    stream.split(SHARD(1))
    stream.put(3)
    await programs.pop().kill()
    programs.append(await reader(node, stream, "two"))
    stream.merge(SHARD(4), SHARD(2))
    stream.put(3)
    await until_delivered(node, topic, 12 * KEYS)
    assert [0, 0] == [await program.terminate() for program in programs]

    read = delivered(node, topic)
    by_key: dict[str, list[int]] = defaultdict(list)
    for line in read:
        if (number := int(line["data"])) not in by_key[line["key"]]:  # a program was killed
            by_key[line["key"]].append(number)
    assert {f"customer-{n}": list(range(1, 13)) for n in range(KEYS)} == by_key, "each key in order"

    shards = {each["ShardId"]: each for each in stream.shards()}
    assert {SHARD(n) for n in range(6)} == shards.keys()
    spans = {shard: [line["at_ns"] for line in read if line["shard"] == shard] for shard in shards}
    assert all(spans.values()), "each shard had records"
    for name, shard in shards.items():
        for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId")):
            assert parent is None or max(spans[parent]) < min(spans[name]), f"{name} was read before {parent} was"

    described = (await node.commands.succeed("subscription", "describe", topic, "billing", "--json")).document()
    assert ["drained"] * 3 == [segment["status"] for segment in described["segments"][:3]]
    listing = json.dumps({"Shards": list(shards.values())}).encode()
    again = await node.commands.succeed("topic", "import", topic, "-", "--format", "kinesis", stdin=listing)
    assert "no change" in again.err


@pytest.mark.nightly
async def test_a_program_continues_where_an_application_of_kcl_stopped(node: Node, stream: Stream) -> None:
    """KCL has finished the parent, is within the first child, and has not begun the second one. Both are resharded later."""
    records = [each for each in stream.stored if each[0] == SHARD(1)]
    done = records[: len(records) // 2]
    leases = {SHARD(0): "SHARD_END", SHARD(1): done[-1][1]}
    with s3_server() as moto:
        environ = stream.environ | {"AWS_ENDPOINT_URL_DYNAMODB": moto.url}
        dynamodb = boto3.client("dynamodb", endpoint_url=moto.url, **credentials(environ))
        dynamodb.create_table(
            TableName="app",
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        for shard, checkpoint in leases.items():
            dynamodb.put_item(TableName="app", Item={"leaseKey": {"S": shard}, "checkpoint": {"S": checkpoint}})
        words = ("migrate", "kcl", "app", "--stream", stream.name, "--subscription", "billing")
        commands = ClientCommands(node.folder, node.config, node.env | environ)
        shown = await commands.succeed(*words, "--dry-run")
        moved = await commands.succeed(*words, "--json", seconds=90)
    assert "SHARD_END" in shown.out
    assert leases | {SHARD(2): None} == {
        each["shard"]: (each["kcl"] or ":").split(":")[0] or None for each in moved.document()
    }
    expected: dict[str, list[int]] = {f"customer-{n}": [4, 5, 6] for n in range(KEYS)}
    for _, _, key, number in done:
        expected[key].remove(number)

    async def read_on(change: Callable[[], None]) -> None:
        """Read while the stream is resharded, to its end."""
        program = await reader(node, stream, "one")
        stream.put(1)
        change()
        stream.put(1)
        for numbers in expected.values():
            numbers += [stream.records - 1, stream.records]
        await until_delivered(node, stream.name, sum(map(len, expected.values())))
        assert await program.terminate() == 0

    await read_on(partial(stream.split, SHARD(1)))
    await read_on(partial(stream.merge, SHARD(4), SHARD(2)))
    by_key: dict[str, list[int]] = defaultdict(list)
    for line in delivered(node, stream.name):
        by_key[line["key"]].append(int(line["data"]))
    assert expected == by_key, "each record behind the leases once, and each key in order"


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
async def test_the_backlog_of_the_stream_is_counted_from_its_tables(counting: Node, admin: Admin, stream: Stream):
    for topic in ("orders", "rubbish"):
        first = await reader(counting, stream, "one", topic)
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
    before_ms = now_ms()
    stream.put(2)
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
    assert before_ms <= found["oldest_ms"] <= now_ms()
    shown = await counting.commands.succeed("backlog", "orders", "--segments")
    assert "segment 1 shardId-000000000001" in shown.out

    async def faulty() -> bool:
        [broken] = await admin.backlog("rubbish")
        return broken.failing and list(left([broken]).values()) == [0, None, None]

    await wait_until(faulty, "the error of the other topic is reported", 60, interval_seconds=COUNT_SECONDS)
    result = await counting.commands.succeed("backlog")
    assert "rubbish could not be counted: external.rubbish.entries (" in result.err
    assert "rubbish.jsonl: has no column 'sequence_number'" in result.err

    status, body = await get(counting.http_address, "/api/v1/subscriptions?topic=orders")
    (summary,) = json.loads(body)["subscriptions"]
    assert (status, summary["backlog_records"]) == (200, 2 * KEYS)
    _, body = await get(counting.http_address, "/api/v1/subscriptions?topic=rubbish")
    (broken,) = json.loads(body)["subscriptions"]
    assert "has no column 'sequence_number'" in broken["unknown_reason"]
    _, page = await get(counting.http_address, f"/topics/rubbish/subscriptions/{broken['subscription']}")
    assert "rubbish.jsonl: has no column" in page
    await wait_until(_exports(counting, headgate_external_tables_failing=1), "the error is exported")
    await wait_until(_exports(counting, headgate_backlog_records=2 * KEYS), "the backlog is exported")
    assert "external_tables.failing" in (counting.data / "logs" / "daemon.log").read_text()


def _exports(node: Node, **wanted: float):
    async def exported() -> bool:
        return all([await metric(node.http_address, name) == value for name, value in wanted.items()])

    return exported
