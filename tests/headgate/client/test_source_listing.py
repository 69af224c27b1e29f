"""Listings of a source's segments, in headgate's form and in Kinesis'."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.client.source_listing import read_layout, read_list_shards
from headgate.errors import LayoutError
from headgate.protocol.requests import ImportTopic, SegmentImport
from shard.requests.source_listing import index_listing
from shard.requests.topic_import import plan_import
from shard.steps import complete

TOP = str(2**128 - 1)


def shard(name: str, first: str = "0", last: str = TOP, **more: Any) -> dict[str, Any]:
    """A shard as list-shards prints it; ``end`` closes it."""
    numbers = {"StartingSequenceNumber": "49546986683135544286507457936321625675700192471156785154"}
    if "end" in more:
        numbers["EndingSequenceNumber"] = more.pop("end")
    return {
        "ShardId": name,
        "HashKeyRange": {"StartingHashKey": first, "EndingHashKey": last},
        "SequenceNumberRange": numbers,
        **more,
    }


def listed(*shards: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"Shards": shards, **more}).encode()


def test_a_closed_shard_is_sealed_and_a_merge_has_two_parents() -> None:
    layout = read_list_shards(
        listed(
            shard("s0", end="49546986683146694659106053197447999811"),
            shard("s1", ParentShardId="s0", AdjacentParentShardId="s9"),
        ),
        source="kinesis:orders",
    )

    assert [
        SegmentImport(segment="s0", hashes=("0", TOP), sealed=True),
        SegmentImport(segment="s1", hashes=("0", TOP), parents=["s0", "s9"]),
    ] == layout.segments
    found = layout.positions, layout.hash_bits, layout.missing_parents, layout.source
    assert ("opaque", 128, "expired", "kinesis:orders") == found


@pytest.mark.parametrize("data", [listed(shard("s0"), NextToken="more"), b"[]"], ids=["one page", "no page"])
def test_a_missing_page_is_refused(data: bytes) -> None:
    with pytest.raises(LayoutError, match="not the last page"):
        read_list_shards(data)


def test_headgates_form_is_a_list_or_an_object() -> None:
    segments = [
        {"segment": "a", "first_hash": 0, "last_hash": 65535, "end_offset": 1041},
        {"segment": 7, "first_hash": "0", "last_hash": "65535", "parents": ["a"]},
    ]
    bare = read_layout(json.dumps(segments).encode())
    named = {"segments": segments, "positions": "offsets", "source": "x", "hash_bits": 20}
    full = read_layout(json.dumps(named).encode())

    assert [
        SegmentImport(segment="a", hashes=("0", "65535"), end_offset=1041),
        SegmentImport(segment="7", hashes=("0", "65535"), parents=["a"]),
    ] == bare.segments
    assert (16, "offsets", "rejected") == (bare.hash_bits, bare.positions, bare.missing_parents)
    assert (bare.segments, "x", 20) == (full.segments, full.source, full.hash_bits)
    assert 0 == read_layout(b'[{"segment": "a"}]').hash_bits
    assert read_layout(b'[{"segment": "a", "sealed": true}]').segments[0].sealed


WRONG = {
    "not JSON": (read_layout, b"segment,parents", "not JSON"),
    "not UTF-8": (read_layout, b"\xff", "not JSON"),
    "nested without end": (read_layout, b"[" * 100_000, "not JSON"),
    "no listing": (read_layout, b'{"shards": []}', "not a listing: Object contains unknown field `shards`"),
    "a field that does not exist": (read_layout, b'[{"segment": "a", "parent": "b"}]', r"unknown field `parent`"),
    "half a range": (read_layout, b'[{"segment": "a", "first_hash": 0}]', "'a' has only one of first_hash"),
    "a negative hash": (read_layout, b'[{"segment": "a", "first_hash": -1, "last_hash": 5}]', "'a': .*hashes"),
    "a fraction": (read_layout, b'[{"segment": "a", "first_hash": 0.5, "last_hash": 5}]', "not a listing"),
    "a name with a space": (read_layout, b'[{"segment": "a b"}]', "'a b': .*segment"),
    "an end below nothing": (read_layout, b'[{"segment": "a", "end_offset": -1}]', "'a': .*end_offset"),
    "a shard without hashes": (
        read_list_shards,
        b'{"Shards": [{"ShardId": "s"}]}',
        "missing required field `HashKeyRange`",
    ),
    "a hash that is no number": (read_list_shards, listed(shard("s", first="x")), "'s': .*hashes"),
    "another document": (read_list_shards, b'{"StreamDescription": {}}', "missing required field `Shards`"),
}


@pytest.mark.parametrize(("read", "data", "said"), WRONG.values(), ids=WRONG.keys())
def test_an_unreadable_listing_is_refused_with_the_reason(read, data: bytes, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        read(data)


def test_a_listing_from_aws_can_be_imported() -> None:
    """Two splits, a merge, boundaries that fit no 16-bit ring, and a first shard that has expired."""
    path = Path(__file__).with_name("list-shards.json")
    layout = read_list_shards(path.read_bytes())
    request = ImportTopic(
        topic="orders",
        token="t",
        segments=list(layout.segments),
        positions=layout.positions,
        hash_bits=layout.hash_bits,
        missing_parents=layout.missing_parents,
    )
    plan = complete(plan_import(request, complete(index_listing(request)), None))

    assert plan is not None
    assert ["shardId-000000000000"] == plan.expired_parents
    assert [[], [], [0], [0], [2, 3]] == [segment.parents for segment in plan.created]
