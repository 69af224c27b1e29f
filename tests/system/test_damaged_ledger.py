"""A damaged object stops its shard only, a foreign one stops nothing, and a repair needs no restart."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.ledger.objects import chunk_folder
from tests.support.servers.cluster import SHARDS, Cluster
from tests.support.servers.programs import TEST_SECONDS, get, jsonl, metric, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        await made.start_servers()
        yield made


async def produce(cluster: Cluster, topic: str, n: int) -> None:
    await cluster.commands.succeed("produce", topic, "--key-field", "id", stdin=jsonl([{"id": "k", "n": n}]))


@pytest.mark.nightly
async def test_only_the_shard_of_a_damaged_object_stops_until_it_is_repaired(cluster: Cluster):
    daemon = await cluster.start_daemon("first")
    await daemon.until_leading()
    names, topics = (f"t{number}" for number in range(20)), dict[int, str]()
    while len(topics) < SHARDS:  # until each shard has one
        created = (await cluster.commands.succeed("topic", "create", next(names), "--json")).document()
        topics[created["shard"]] = created["topic"]
    for topic in topics.values():
        await produce(cluster, topic, 1)
    assert await cluster.stop("first") == 0
    store = Path(cluster.ledger_url.removeprefix("file://"))
    (store / chunk_folder(0) / "README.txt").write_text("The chunks of shard 0.")
    damaged = max((store / chunk_folder(1)).iterdir())
    intact = damaged.read_bytes()
    damaged.write_bytes(intact[:40] + bytes([intact[40] ^ 1]) + intact[41:])
    name = str(damaged.relative_to(store))

    daemon = await cluster.start_daemon("first")
    await daemon.until_leading(1)
    await produce(cluster, topics[0], 2)
    await wait_until(lambda: daemon.reports(200, "ledger", "degraded"), "the daemon reports the damage")
    _, report = await daemon.health()
    document = json.loads((await get(daemon.http_address, "/api/v1/daemon"))[1])
    shards = {shard["shard"]: shard for shard in document["shards"]}

    assert report["state"] == "degraded"
    assert f"shard 1: {name} is damaged" in report["components"]["ledger"]["reason"]
    assert {shard: each["role"] for shard, each in shards.items()} == {0: "leading", 1: "failed"}
    assert shards[1]["fault"].startswith(f"{name} is damaged")
    assert await metric(daemon.http_address, "headgate_ledger_foreign_objects", shard="0") == 1
    [foreign] = daemon.log_entries("ledger.foreign_objects")
    assert (foreign["folder"], foreign["names"]) == (chunk_folder(0), ["README.txt"])
    assert [name] == [line["reason"].split()[0] for line in daemon.log_entries("ledger.unreadable")]

    damaged.write_bytes(intact)
    await daemon.until_leading(2, 90)
    await produce(cluster, topics[1], 2)
    _, report = await daemon.health()

    assert report["components"]["ledger"]["state"] == "ok"
    assert sorted(json.loads(value)["n"] for _, value in await cluster.stored()) == [1, 1, 2, 2]
