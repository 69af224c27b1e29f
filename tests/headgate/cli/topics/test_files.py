"""`headgate topic files`: what it prints."""

import asyncio
import json
from pathlib import Path

import pytest

from headgate.cli.topics.topic import location
from headgate.client.topic_source import TopicSource
from tests.headgate.cli.conftest import Invoke
from tests.headgate.cli.records.test_read import never
from tests.support.fakes.cli_client import FakeCluster
from tests.support.samples.positioned_ledger import LedgerWithPositions


@pytest.fixture(autouse=True)
def stored(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records in a compacted chunk and one in the chunk after it."""

    async def write() -> LedgerWithPositions:
        known = LedgerWithPositions()
        await known.write(10, 0, 0)
        await known.write(20, 1)
        await known.compact(1)
        return known

    known = asyncio.run(write())
    cluster.source = TopicSource(known.description(), known.ledger, "0" * 32, newest_chunk=2, describe=never)
    config = tmp_path / "client.toml"
    config.write_text(
        'cluster = "local"\nbroker_host = "localhost"\nbroker_port = 1883\nledger_url = "file:///srv/head%20gate/"\n'
    )
    monkeypatch.setenv("HEADGATE_CONFIG", str(config))


def test_files_of_a_topic_as_json(invoke: Invoke) -> None:
    result = invoke("topic", "files", "t", "--json")

    assert result.exit_code == 0, result.stderr
    listed = json.loads(result.stdout)
    segments = [{"segment": 0, "end_offset": 2}, {"segment": 1, "end_offset": 1}]
    assert ("t", 1, 0, "0" * 32, segments) == tuple(
        listed[name] for name in ("topic", "topic_id", "shard", "ledger_id", "segments")
    )
    compacted, chunk = listed["files"]
    assert ("compacted", 1, 1, 0, 0, 2) == tuple(
        compacted[name] for name in ("kind", "first_chunk", "last_chunk", "segment", "first_offset", "end_offset")
    )
    assert f"/srv/head gate/{compacted['path']}" == compacted["location"]
    path = "chunks/shard=0000/000000000002.parquet"
    assert {
        "location": f"/srv/head gate/{path}",
        "path": path,
        "kind": "chunk",
        "first_chunk": 2,
        "last_chunk": 2,
        "segment": None,
        "first_offset": None,
        "end_offset": None,
        "term_id": "0",
    } == chunk


def test_the_location_in_a_bucket_is_its_url() -> None:
    assert location("s3://bucket/ledger/") == "s3://bucket/ledger"
