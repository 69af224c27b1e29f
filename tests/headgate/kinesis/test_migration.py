"""Positions of a KCL application become those of a subscription."""

import asyncio
from typing import Any

import boto3
import pytest
from moto import mock_aws

from headgate.client.source_listing import ExternalLayout
from headgate.errors import HeadgateError
from headgate.kinesis.kcl_leases import FINISHED, positions, read_leases
from headgate.kinesis.migration import MigratedShard, migrate, read_tables
from headgate.protocol.requests import SegmentImport
from tests.headgate.kinesis.test_consumer import KEYS, Reader, put, stream, whole
from tests.support.fakes.kinesis_stream import FakeKinesisStream
from tests.support.waiting import until
from tests.support.worlds.external_topic import world
from tests.support.worlds.one_shard_programs import client

__all__ = ["stream"]


def lease(shard: str, checkpoint: str, number: int = 0) -> dict[str, Any]:
    return {
        "leaseKey": {"S": shard},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": str(number)},
        "leaseCounter": {"N": "7"},
    }


async def test_a_subscription_continues_where_the_application_stopped(stream: FakeKinesisStream) -> None:
    """Root and one child are finished; KCL has deleted the root's lease, and has not begun one grandchild."""
    put(stream, 0, 3)
    left, right = stream.split("shardId-000000000000")
    put(stream, 3, 5)
    lower, upper = stream.split(left)
    before = {name: shard.records[-1][0] for name, shard in stream.known.items() if shard.records}
    put(stream, 5, 7)
    last = {lower: stream.known[lower].records, right: stream.known[right].records}
    keys = {name: {each[1] for each in stream.known[name].records} for name in (lower, upper, right)}
    assert set(KEYS) == set.union(*keys.values())
    items = [
        lease(left, FINISHED),
        lease(lower, last[lower][-1][0]),
        lease(upper, "TRIM_HORIZON"),
        lease(right, before[right]),
    ]
    new = {key: whole(8, 7 if key in keys[lower] else 5)[key] for key in KEYS}

    reader = Reader()
    async with world() as (cluster, _):
        options = {"topic": "s", "subscription": "sub"}
        async with client(cluster, "dry") as shared:
            shown = await migrate(shared, stream, items, **options, dry_run=True)
            for checkpoint, said in ((FINISHED, "is open, and a finished lease"), ("99", "99 is of another stream")):
                with pytest.raises(HeadgateError, match=said):
                    await migrate(shared, stream, [lease(upper, checkpoint)], **options, dry_run=True)
        assert [FINISHED, FINISHED, f"{before[right]}:0", f"{last[lower][-1][0]}:0", None] == [
            each.kcl for each in shown
        ]
        for attempt in ("first", "again"):
            async with client(cluster, attempt) as shared:
                found = await migrate(shared, stream, items, **options)
            assert [MigratedShard(each.shard, each.kcl, each.kcl) for each in shown] == found
        put(stream, 7, 8)
        async with reader.reading(cluster):
            await until(lambda: reader.by_key == new, 240)
        async with client(cluster, "late") as shared:
            with pytest.raises(HeadgateError, match="has read shardId-"):
                await migrate(shared, stream, items, **options)


async def test_a_finished_shard_is_not_read_before_it_is_known_to_be_drained(stream: FakeKinesisStream) -> None:
    put(stream, 0, 3)
    stream.split("shardId-000000000000")
    put(stream, 3, 5)
    reader = Reader()
    async with world() as (cluster, _):
        cluster.drain_problem = "Spark is away"
        async with client(cluster, "kcl") as shared:
            items = [lease("1:s:1:shardId-000000000000", FINISHED)]
            await migrate(shared, stream, items, topic="s", subscription="sub")
        async with reader.reading(cluster):
            await asyncio.sleep(20)
            cluster.drain_problem = None
            await until(lambda: reader.by_key == whole(5, 3), 240)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([lease("shardId-1", "LATEST")], "the lease of shardId-1 is at LATEST, so KCL has handled no record of it"),
        ([lease("1:other:5:shardId-1", "7")], "no lease of a shard of stream s"),
        ([lease("1:s:4:shardId-1", "7")], "no lease of a shard of stream s"),
        ([{"leaseKey": {"S": "migration"}}], "no lease of a shard of stream s"),
    ],
)
def test_leases_without_a_position_are_refused(items: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(HeadgateError, match=said):
        read_leases(items, "s", "5")


def test_leases_of_several_streams_and_of_packed_records_are_read() -> None:
    items = [lease("1:s:5:shardId-1", "7", 3), lease("1:other:5:shardId-1", "8"), lease("1:s:5:shardId-2", FINISHED)]
    items.append(lease("1:s:4:shardId-1", "9"))  # of a stream that was deleted and created again

    found = {shard: (each.checkpoint, each.names_stream) for shard, each in read_leases(items, "s", "5").items()}
    assert {"shardId-1": ("7:3", True), "shardId-2": (FINISHED, True)} == found


PARENT, LEFT, RIGHT, NEXT = (f"shardId-00000000000{number}" for number in range(3, 7))
LAYOUT = ExternalLayout(
    [
        SegmentImport(segment=PARENT, parents=["shardId-000000000001"], hashes=("0", "9"), sealed=True),
        SegmentImport(segment=LEFT, parents=[PARENT], hashes=("0", "4")),
        SegmentImport(segment=RIGHT, parents=[PARENT], hashes=("5", "9")),
    ],
    "opaque",
)
UNREAD, OTHER = f"{PARENT} would be passed unread, and nothing shows", "of another or an earlier stream"
HASHES = {"startingHashKey": {"S": "0"}, "endingHashKey": {"S": "4"}}


@pytest.mark.parametrize(
    ("more", "stream_id", "said"),
    [
        pytest.param([lease(LEFT, "TRIM_HORIZON"), lease("shardId-000000000001", "7")], "a", UNREAD, id="no position"),
        pytest.param([lease(LEFT, "7")], "", None, id="a position, which Kinesis judges"),
        pytest.param([lease("1:s:5:" + LEFT, "TRIM_HORIZON")], "", None, id="several streams"),
        pytest.param([{"key": {"S": "s"}, "streamId": {"S": "a"}}], "a", None, id="an id"),
        pytest.param([{"leaseKey": {"S": "s"}, "streamId": {"S": "a"}}], "", UNREAD, id="an id that no server says"),
        pytest.param([{"leaseKey": {"S": "s"}, "streamId": {"S": "a"}}], "b", "earlier stream s", id="another id"),
        pytest.param([lease(LEFT, "7") | {"parentShardId": {"SS": [PARENT]}} | HASHES], "", None, id="the same shard"),
        pytest.param([lease(LEFT, "7") | {"parentShardId": {"SS": [RIGHT]}}], "", OTHER, id="other parents"),
        pytest.param([lease(RIGHT, "7") | HASHES], "", OTHER, id="other hashes"),
        pytest.param([lease(LEFT, "7"), lease(NEXT, "8")], "", OTHER, id="a later shard"),
    ],
)
def test_a_finished_lease_is_believed_if_the_table_shows_its_stream(
    more: list[dict[str, Any]], stream_id: str, said: str | None
) -> None:
    def found(*, trusted: bool) -> dict[str, str]:
        return positions(read_leases([lease(PARENT, FINISHED), *more], "s", "5", stream_id), LAYOUT, trusted=trusted)

    if said is None:
        assert FINISHED == found(trusted=False)[PARENT]
        return
    with pytest.raises(HeadgateError, match=said):
        found(trusted=False)
    if said == UNREAD:
        assert {PARENT: FINISHED} == found(trusted=True)


@mock_aws
def test_a_table_of_dynamodb_is_read_completely() -> None:
    source = boto3.client("dynamodb", region_name="us-east-1")
    source.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for number in range(120):
        padded = lease(f"shardId-{number}", str(number)) | {"ownerSwitchesSinceCheckpoint": {"S": "x" * 20_000}}
        source.put_item(TableName="leases", Item=padded)

    assert 120 == len(read_leases(asyncio.run(read_tables("leases", source)), "s", "5"))
    with pytest.raises(HeadgateError, match="table nothing cannot be read: "):
        asyncio.run(read_tables("nothing", source))
