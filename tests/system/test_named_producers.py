"""`headgate produce --name` stores a file exactly once, whatever other producers a daemon forgets meanwhile."""

import json
from pathlib import Path

import pytest

from controller.settings.sections import IngestSettings
from headgate import Client
from headgate.protocol import messages as m
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, jsonl, metric, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

LINES = 5


@pytest.mark.nightly
async def test_an_import_is_stored_once_until_its_producer_is_deleted(tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    file.write_bytes(jsonl({"id": "k", "n": n} for n in range(LINES)))
    ingest = IngestSettings(max_producers=10)
    async with Cluster(tmp_path, session_seconds=30, shards=1, ingest=ingest) as cluster:
        await cluster.start_servers()
        first = await cluster.start_daemon("first")
        await first.until_leading()
        await cluster.commands.succeed("topic", "create", "orders")

        async def produce() -> str:
            produced = await cluster.commands.succeed(
                *("produce", "orders", "--key-field", "id", "--name", "import-1", str(file))
            )
            return produced.err

        assert "stored 5, failed 0" in await produce()
        async with Client.from_config(cluster.client_config(), "opener") as client:
            for _ in range(12):
                await client.request(0, m.OpenProducer(token=client.new_token()))

        async def forgotten() -> bool:
            return await metric(first.http_address, "headgate_producers") == 10 + 1

        await wait_until(forgotten, "ten anonymous producers and the named one are left")
        assert "stored 0, failed 0" in await produce()
        await first.process.stop(20)
        second = await cluster.start_daemon("second")
        await second.until_leading()
        assert "stored 0, failed 0" in await produce()
        assert LINES == await cluster.stored_count()

        (listed,) = json.loads((await cluster.commands.succeed("producer", "list", "--json")).out)
        assert ("import-1", 2) == (listed["producer"], listed["producer_epoch"])
        assert "line 5" in (await cluster.commands.succeed("producer", "describe", "import-1")).out
        await cluster.commands.succeed("producer", "delete", "import-1", "--yes")
        unknown = await cluster.commands.finish("producer", "describe", "import-1")
        assert (1, "no shard has a producer 'import-1'" in unknown.err) == (unknown.code, True)
        assert "stored 5, failed 0" in await produce(), "the name is new, and reads its file from the beginning"
