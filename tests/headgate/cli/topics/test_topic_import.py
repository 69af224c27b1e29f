"""`headgate topic import`: formats, requests, and the display of external topics."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster

HALF = 2**127
TOP = 2**128 - 1


def shard(number: int, first: int, last: int, *parents: int, closed: bool = False) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": "1"} | ({"EndingSequenceNumber": "2"} if closed else {})
    names = dict(
        zip(("ParentShardId", "AdjacentParentShardId"), (f"shardId-{parent}" for parent in parents), strict=False)
    )
    return {
        "ShardId": f"shardId-{number}",
        "HashKeyRange": {"StartingHashKey": str(first), "EndingHashKey": str(last)},
        "SequenceNumberRange": numbers,
        **names,
    }


SPLIT = [shard(0, 0, TOP, closed=True), shard(1, 0, HALF - 1, 0), shard(2, HALF, TOP, 0)]


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    path = tmp_path / "shards.json"
    path.write_text(json.dumps({"Shards": SPLIT}))
    return path


def test_an_import_prints_the_topic_with_its_names_at_the_source(listing: Path, invoke: Invoke, cluster: FakeCluster):
    result = invoke("topic", "import", "orders", str(listing), "--format", "kinesis")

    assert (0, "created: shardId-0, shardId-1, shardId-2\n") == (result.exit_code, result.stderr)
    assert [
        "orders: 2 active, 1 sealed; shard 2, layout epoch 0; external, positions are opaque",
        "",
        "segment  hashes     state   records  size",
        "0        0000-ffff  sealed                 shardId-0",
        "├─ 1     0000-7fff  active                 shardId-1",
        "└─ 2     8000-ffff  active                 shardId-2",
        "",
        "0000 ├───────────────1───────────────├───────────────2───────────────┤ ffff",
        "",
        "subscriptions: none",
    ] == result.stdout.splitlines()
    assert [("orders", True, False)] == [(call.topic, call.complete, call.dry_run) for call in cluster.calls]
    invoke("topic", "import", "orders", str(listing), "--format", "kinesis", "--partial")
    assert cluster.calls[-1].complete is False


def test_a_repeated_import_changes_nothing_and_a_reshard_lists_its_changes(
    listing: Path, invoke: Invoke, cluster: FakeCluster
) -> None:
    words = ("topic", "import", "orders", str(listing), "--format", "kinesis")
    invoke(*words)
    assert "no change: the topic matches its source\n" == invoke(*words).stderr

    merged = [SPLIT[0], *(shard(n, *r, 0, closed=True) for n, r in ((1, (0, HALF - 1)), (2, (HALF, TOP))))]
    listing.write_text(json.dumps({"Shards": [*merged, shard(3, 0, TOP, 1, 2)]}))
    dry = invoke(*words, "--dry-run")
    assert "would be created: shardId-3\nwould be sealed: shardId-1, shardId-2\n" == dry.stderr
    assert "created: shardId-3\nsealed: shardId-1, shardId-2\n" == invoke(*words).stderr


def test_expired_parents_are_named(invoke: Invoke, cluster: FakeCluster) -> None:
    result = invoke("topic", "import", "orders", "-", "--format", "kinesis", stdin=json.dumps({"Shards": SPLIT[1:]}))

    assert "expired at the source with all their records: shardId-0" in result.stderr


def test_an_invalid_listing_is_one_line_and_exit_code_1(invoke: Invoke, listing: Path) -> None:
    twice = '[{"segment": "a"}, {"segment": "a"}]'
    for text, message in (("[", ".json: not JSON: "), (twice, "segment 'a' is listed twice")):
        listing.write_text(text)
        result = invoke("topic", "import", "orders", str(listing))
        assert (1, 1, True) == (result.exit_code, len(result.stderr.splitlines()), message in result.stderr)


def test_topic_list_marks_external_topics_and_shows_no_records_for_them(invoke: Invoke, cluster: FakeCluster) -> None:
    invoke("topic", "import", "orders", "-", stdin='[{"segment": "a", "end_offset": 7}]')
    row = next(line for line in invoke("topic", "list").stdout.splitlines() if "orders" in line)

    assert ["orders", "external", "2", "0", "1"] == row.split()
