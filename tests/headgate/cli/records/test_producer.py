"""`headgate producer`: tables, JSON and deletion of named producers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pytest

from headgate import ProducerInfo, TopicPosition
from headgate.cli.records.ndjson import KeyedRecord, encode_position
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster

LINE_5 = encode_position(KeyedRecord(number=5, key=b"k", value=b"{}", end_offset=120))
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


def test_one_producer_is_described_on_its_shards(invoke: Invoke, producers: FakeCluster):
    lines = [line.split() for line in invoke("producer", "describe", "import-1").stdout.splitlines()]
    assert ["0", "7", "2", "12", "2023-11-14", "22:13"] == lines[2]
    assert ["3", "7", "0", "12", "2023-11-14", "22:13"] == lines[3]
    assert [["0", "orders", "line", "5"], ["0", "returns", "row", "7"], ["3", "orders", "line", "5"]] == lines[6:]

    found = json.loads(invoke("producer", "describe", "import-1", "--json").stdout)
    assert [0, 3] == [each["shard"] for each in found]
    assert LINE_5 == base64.b64decode(found[0]["positions"][0]["position"])


def test_a_list_as_json(invoke: Invoke, producers: FakeCluster):
    found = json.loads(invoke("producer", "list", "--json").stdout)

    assert [("gateway", []), ("import-1", 7)] == [
        (found[0]["producer"], found[0]["positions"]),
        (found[1]["producer"], found[1]["producer_id"]),
    ]


def test_without_producers_the_list_says_how_one_is_created(invoke: Invoke, cluster: FakeCluster):
    listed = invoke("producer", "list")

    assert (0, "") == (listed.exit_code, listed.stdout)
    assert "headgate produce --name NAME" in listed.stderr


def test_a_producer_is_deleted(invoke: Invoke, producers: FakeCluster):
    deleted = invoke("producer", "delete", "import-1", "--yes")

    assert (0, "producer import-1 deleted\n") == (deleted.exit_code, deleted.stderr)
    assert [("delete_producer", "import-1")] == producers.calls


@pytest.mark.parametrize("words", [("describe",), ("delete", "--yes"), ("delete", "--dry-run")], ids=" ".join)
def test_an_unknown_producer_is_one_line(invoke: Invoke, producers: FakeCluster, words: tuple[str, ...]):
    failed = invoke("producer", *words, "import-9")

    assert (1, "headgate: no shard has a producer 'import-9'\n") == (failed.exit_code, failed.stderr)
