"""`headgate producer`: tables, JSON and deletion of named producers."""

from collections.abc import Mapping

import pytest

from headgate import ProducerInfo, TopicPosition
from headgate.cli.records.ndjson import Line, encode_position
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster

LINE_5 = encode_position(Line(5, 120, b"{}"))
ORDERS = {"orders": LINE_5}


@pytest.fixture
def producers(cluster: FakeCluster) -> FakeCluster:
    """A cluster where import-1 has written to two shards, and a gateway to one."""
    cluster.producers = [
        info("gateway", shard=0, positions={}),
        info("import-1", shard=0, positions={"orders": LINE_5, "returns": b"row 7"}),
        info("import-1", shard=3, producer_epoch=0),
    ]
    return cluster


def info(name: str, *, shard: int, producer_epoch: int = 2, positions: Mapping[str, bytes] = ORDERS) -> ProducerInfo:
    return ProducerInfo(
        producer=name,
        shard=shard,
        producer_id=7,
        producer_epoch=producer_epoch,
        next_sequence=12,
        last_used_at_ms=1_700_000_000_000,
        positions=[TopicPosition(topic=topic, topic_id=1, position=data) for topic, data in positions.items()],
    )


def test_producers_are_listed_by_shard(invoke: Invoke, producers: FakeCluster):
    lines = [line.split() for line in invoke("producer", "list").stdout.splitlines()]

    assert ["gateway", "0", "2023-11-14", "-", "-"] in lines
    assert ["import-1", "0", "2023-11-14", "returns", "row", "7"] in lines
    assert ["import-1", "3", "2023-11-14", "orders", "line", "5"] in lines
    assert 4 + 2 == len(lines)


def test_without_producers_the_list_says_how_one_is_created(invoke: Invoke, cluster: FakeCluster):
    listed = invoke("producer", "list")

    assert (0, "") == (listed.exit_code, listed.stdout)
    assert "headgate produce --name NAME" in listed.stderr
