"""`headgate up` and the commands of the README, run as processes."""

import asyncio
import json
import re
import shutil
import tomllib
from collections.abc import Awaitable
from typing import Any

import psutil
import pytest

from drain.service.processor_share import NICENESS
from headgate.process.resources import all_but_one
from tests.support.servers.node import Node
from tests.support.servers.programs import TEST_SECONDS, command_line, get, jsonl, metric, processes_of, wait_until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

EVENTS = [{"id": key, "n": n} for n in range(20) for key in ("a", "b", "c")]


def values(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return (id, n) of consumed records, sorted: there is no order across keys."""
    return sorted((record["value"]["id"], record["value"]["n"]) for record in records)


SENT = sorted((event["id"], event["n"]) for event in EVENTS)


async def test_up_prints_addresses_and_writes_files_for_clients_and_daemons(node: Node):
    client = tomllib.loads(node.config.read_text())
    daemon = tomllib.loads((node.data / "headgate.toml").read_text())

    assert f"ZooKeeper at {daemon['zookeeper']['hosts']}" in node.start_output
    assert f"at {client['broker_host']}:{client['broker_port']}" in node.start_output
    assert f"ledger at {client['ledger_url']}" in node.start_output
    assert f"metrics  {'https' if node.tls else 'http'}://{node.http_address}/metrics" in node.start_output
    assert ("users    " in node.start_output) == node.tls
    assert (daemon["broker"]["port"], daemon["ledger"]["url"]) == (client["broker_port"], client["ledger_url"])
    assert (await get(node.http_address, "/livez"))[0] == 200
    assert (await get(node.http_address, "/"))[0] == 200
    loaded = {each.path for each in (await node.process("headgate up")).memory_maps()}
    assert [] == [path for path in loaded if re.search(r"numpy|pyarrow/_(compute|parquet)", path)], "memory for nothing"


async def test_a_topic_is_created_listed_described_split_merged_and_deleted(node: Node):
    created = (await node.commands.succeed("topic", "create", "life", "--segments", "2", "--json")).document()
    split = (await node.commands.succeed("topic", "split", "life", "0", "--json")).document()
    merged = (await node.commands.succeed("topic", "merge", "life", "3", "1", "--json")).document()
    described = (await node.commands.succeed("topic", "describe", "life", "--json")).document()
    drawn = await node.commands.succeed("topic", "describe", "life")
    listed = await node.commands.succeed("topic", "list")
    await node.commands.succeed("topic", "delete", "life", "--yes")
    after = (await node.commands.succeed("topic", "list", "--json")).document()

    assert [segment["state"] for segment in created["segments"]] == ["active", "active"]
    assert {s["segment"]: s["parents"] for s in split["segments"]} == {0: [], 1: [], 2: [0], 3: [0]}
    assert {s["segment"]: s["state"] for s in merged["segments"]} == {
        **dict.fromkeys((0, 1, 3), "sealed"),
        **dict.fromkeys((2, 4), "active"),
    }
    assert described == merged
    assert "life: 2 active" in drawn.out
    assert "life" in listed.out
    assert "life" not in [topic["topic"] for topic in after]


async def test_records_from_a_file_and_from_standard_input_reach_every_type_of_subscription(node: Node):
    await node.commands.succeed("topic", "create", "io", "--segments", "4")
    file = node.folder / "events.ndjson"
    file.write_bytes(jsonl(EVENTS[:30]))

    from_file = await node.commands.succeed("produce", "io", "--key-field", "id", str(file), "--json")
    from_input = await node.commands.succeed("produce", "io", "--key-field", "id", stdin=jsonl(EVENTS[30:]))
    stream = await node.consume("io", "billing")
    queue = await node.consume("io", "mail", "queue")
    checkpoint = await node.consume("io", "audit", "checkpoint")
    read = (await node.commands.succeed("read", "io")).records()
    last = (await node.commands.succeed("read", "io", "--tail", "5", "--format", r"%s=%o\n")).out.split()

    assert {name: from_file.document()[name] for name in ("accepted", "stored", "failed")} == {
        "accepted": 30,
        "stored": 30,
        "failed": 0,
    }
    assert "accepted 30, stored 30, failed 0" in from_input.err
    described = (await node.commands.succeed("topic", "describe", "io", "--json")).document()
    assert ["audit", "billing", "mail"] == sorted(described["subscriptions"]), "reading leaves none"
    assert [f"{each['segment']}={each['offset']}" for each in read[-5:]] == last
    assert SENT == values(stream) == values(queue) == values(checkpoint) == values(read)
    for records in (stream, queue, checkpoint, read):
        assert {"key", "value", "segment", "offset", "timestamp"} == set(records[0])
        by_key = {key: [r["value"]["n"] for r in records if r["key"] == key] for key in ("a", "b", "c")}
        assert by_key == {key: list(range(20)) for key in ("a", "b", "c")}


async def test_a_subscription_is_listed_described_and_deleted(node: Node):
    await node.commands.succeed("topic", "create", "watched", "--segments", "2")
    await node.commands.succeed("produce", "watched", "--key-field", "id", stdin=jsonl(EVENTS))
    await node.consume("watched", "billing")

    listed = (await node.commands.succeed("subscription", "list", "watched", "--json")).document()
    everywhere = (await node.commands.succeed("subscription", "list", "--json")).document()
    described = (await node.commands.succeed("subscription", "describe", "watched", "billing", "--json")).document()
    tables = [
        await node.commands.succeed("subscription", "list"),
        await node.commands.succeed("subscription", "describe", "watched", "billing"),
    ]
    await node.commands.succeed("subscription", "delete", "watched", "billing", "--force", "--yes")
    after = (await node.commands.succeed("subscription", "list", "watched", "--json")).document()

    assert [(each["subscription"], each["type"]) for each in listed] == [("billing", "STREAM")]
    assert listed[0] in everywhere
    progress = {each["segment"]: each["next_offset"] - each["acknowledged_offset"] for each in described["segments"]}
    assert progress == {0: 0, 1: 0}
    assert all("billing" in table.out for table in tables)
    assert after == []


async def test_records_are_copied_and_drained_segments_pruned(node: Node):
    for topic in ("original", "copied"):
        await node.commands.succeed("topic", "create", topic)
    await node.commands.succeed("produce", "original", "--key-field", "id", stdin=jsonl(EVENTS[:30]))
    await node.commands.succeed("topic", "split", "original", "0")
    await node.commands.succeed("produce", "original", "--key-field", "id", stdin=jsonl(EVENTS[30:]))

    copied = await node.commands.succeed("topic", "copy", "original", "copied", "--to-config", str(node.config))
    again = await node.commands.succeed("topic", "copy", "original", "copied")
    read = {topic: (await node.commands.succeed("read", topic)).records() for topic in ("original", "copied")}
    assert SENT == values(await node.consume("original", "billing"))

    async def pruned() -> dict[str, Any] | None:
        document = (await node.commands.succeed("topic", "prune", "original", "--yes", "--json")).document()
        return document if document["segments"] else None

    assert (await wait_until(pruned, "segment 0 is drained and pruned", 30))["segments"] == [0]
    assert "stored 60, failed 0" in copied.err
    assert "stored 0, failed 0" in again.err
    for key in ("a", "b", "c"):
        assert {topic: [each["value"]["n"] for each in read[topic] if each["key"] == key] for topic in read} == {
            topic: list(range(20)) for topic in read
        }


async def test_retention_deletes_what_is_too_old_and_counts_what_a_subscription_loses(node: Node):
    await node.commands.succeed("topic", "create", "short")
    await node.commands.succeed("topic", "set", "short", "--max-age", "1s", "--max-bytes", "1GB")
    await node.commands.succeed("subscription", "create", "short", "late", "--from", "earliest")
    await node.commands.succeed("subscription", "set", "short", "late", "--ignored-by-retention")
    await node.commands.succeed("produce", "short", "--key-field", "id", stdin=jsonl(EVENTS))

    async def dropped() -> bool:
        late = (await node.commands.succeed("subscription", "describe", "short", "late", "--json")).document()
        return late["dropped_records"] == len(EVENTS)

    await wait_until(dropped, "the segment of the records is rolled and pruned", 90)
    await node.commands.succeed("topic", "set", "short", "--max-age", "none")
    await node.commands.succeed("produce", "short", "--key-field", "id", stdin=jsonl(EVENTS))
    described = await node.commands.succeed("topic", "describe", "short")

    assert SENT == values(await node.consume("short", "late"))
    assert "max-age none, max-bytes 1GB" in described.out


async def test_settings_of_a_topic_and_order_and_start_of_a_subscription_are_changed(node: Node):
    await node.commands.succeed("topic", "create", "tuned")
    await node.commands.succeed("produce", "tuned", "--key-field", "id", stdin=jsonl(EVENTS))

    await node.commands.succeed("subscription", "create", "tuned", "all", "--from", "earliest")
    await node.commands.succeed("subscription", "create", "tuned", "none")
    await node.commands.succeed("subscription", "set-order", "tuned", "all", "none")
    tuned = await node.commands.succeed("topic", "set", "tuned", "--auto-split", "on", "--auto-merge", "on", "--json")
    described = (await node.commands.succeed("subscription", "describe", "tuned", "all", "--json")).document()

    assert SENT == values((await node.commands.succeed("consume", "tuned", "all", "--max", "60")).records())
    assert [] == await node.consume("tuned", "none")
    policy = tuned.document()["policy"]
    assert (policy["auto_split"], policy["auto_merge"]) == (True, True)
    assert described["order"] == "none"


async def test_broker_daemon_and_consumer_recover_after_the_broker_is_killed(node: Node):
    await node.commands.succeed("topic", "create", "rebroker")
    consumer = await node.commands.start("rebroker", "consume", "rebroker", "billing", "--from", "earliest")
    await node.commands.succeed("produce", "rebroker", "--key-field", "id", stdin=jsonl(EVENTS[:30]))
    await consumer.until_printed(30)

    broker = await node.process("mosquitto.conf")
    broker.kill()
    produced = await node.commands.finish("produce", "rebroker", "--key-field", "id", stdin=jsonl(EVENTS[30:]))

    assert produced.code == 0, produced.err
    await consumer.until_printed(60)
    await consumer.terminate()
    assert len(consumer.lines()) == 60
    assert (await node.process("mosquitto.conf")).pid != broker.pid
    assert await node.consume("rebroker", "billing") == []


async def test_three_consumers_share_one_segment_and_each_key_is_read_in_order_by_one(node: Node):
    await node.commands.succeed("topic", "create", "crowd", "--segments", "1")
    consumers = [
        await node.commands.start(f"crowd-{n}", "consume", "crowd", "billing", "--from", "earliest") for n in range(3)
    ]

    async def shared() -> bool:
        described = await node.commands.finish("subscription", "describe", "crowd", "billing", "--json")
        if described.code != 0:
            return False  # No consumer has registered yet.
        return [part["status"] for part in described.document()["segments"][0]["bucket_ranges"]] == ["granted"] * 3

    await wait_until(shared, "every consumer has a part of the segment")
    events = [{"id": f"key-{key}", "n": n} for n in range(5) for key in range(40)]
    await node.commands.succeed("produce", "crowd", "--key-field", "id", stdin=jsonl(events))
    await wait_until(
        lambda: sum(len(c.lines()) for c in consumers) >= len(events),
        lambda: f"everything is consumed: {[len(c.lines()) for c in consumers]} of {len(events)}",
    )
    read = [[json.loads(line)["value"] for line in c.lines()] for c in consumers]
    for consumer in consumers:
        await consumer.terminate()

    assert all(read), "one consumer read nothing"
    assert sum(map(len, read)) == len(events)
    for key in {event["id"] for event in events}:
        assert [
            [value["n"] for value in one if value["id"] == key] for one in read if key in [v["id"] for v in one]
        ] == [list(range(5))]


async def test_ingestion_continues_without_spark_and_children_are_released_after_its_restart(node: Node):
    await node.until_state("ready")
    await node.commands.succeed("topic", "create", "sparkless")
    consumer = await node.commands.start("sparkless", "consume", "sparkless", "billing", "--from", "earliest")
    await node.commands.succeed("produce", "sparkless", "--key-field", "id", stdin=jsonl(EVENTS[:30]))

    spark = await node.process("drain.service")
    assert spark.nice() == min(19, psutil.Process().nice() + NICENESS), "clients wait for the daemon"
    all_cores = psutil.Process().cpu_affinity()
    await wait_until(
        lambda: (
            {frozenset(each.cpu_affinity()) for each in [spark, *spark.children()]}
            == {frozenset(all_but_one({*all_cores}))}
        ),
        "Spark and its JVM leave a core to the daemon after the first count",
    )
    loop = asyncio.get_running_loop()
    killed_at = loop.time()
    spark.kill()
    report = await node.until_state("degraded")
    await node.commands.succeed("topic", "split", "sparkless", "0")
    produced = await node.commands.succeed("produce", "sparkless", "--key-field", "id", stdin=jsonl(EVENTS[30:]))

    assert report["components"]["drain"]["state"] == "degraded"
    assert "Spark" in report["components"]["drain"]["reason"]
    assert "stored 30" in produced.err

    async def seconds_until(event: Awaitable[object]) -> float:
        await event
        return loop.time() - killed_at

    started_seconds, released_seconds = await asyncio.gather(
        seconds_until(node.until_state("ready")), seconds_until(consumer.until_printed(60, 60))
    )
    assert (await node.process("drain.service")).pid != spark.pid
    # A busy machine makes both slower.
    assert released_seconds < 1.5 * started_seconds + 5, "its death costs its start, and a run"
    await consumer.terminate()
    assert len(consumer.lines()) == 60


async def test_promtool_accepts_the_metrics_and_they_count_what_happened(node: Node):
    await node.commands.succeed("topic", "create", "counted")
    before = await metric(node.http_address, "headgate_records_stored_total")
    await node.commands.succeed("produce", "counted", "--key-field", "id", stdin=jsonl(EVENTS))

    await node.until_metric("headgate_records_stored_total", before + len(EVENTS))
    await node.until_metric("headgate_shard_is_leader", 4)
    await node.until_metric("headgate_zookeeper_state", 1, state="connected")
    assert await metric(node.http_address, "headgate_batches_judged_total", verdict="accept") >= 1
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing; it comes with Debian's package prometheus, and CI installs it")
    checked = await asyncio.create_subprocess_exec(
        *(promtool, "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await checked.communicate((await get(node.http_address, "/metrics"))[1].encode())
    assert (checked.returncode, output.decode()) == (0, "")


async def test_the_incremental_count_of_all_these_tests_equals_a_full_count(node: Node):
    """The tests before this one have left rejections, splits, seeks, shared segments and deletions in the ledger."""
    ledger = (node.data / "ledger").as_uri()
    verified = await node.commands.succeed("drain", "verify", "--ledger", ledger, "--json", seconds=120)

    assert verified.document()["same"]
    assert all(shard["watermark"] for shard in verified.document()["shards"])


# Last, because it restarts Spark, which later tests would have to wait for.
async def test_sigterm_stops_everything_and_the_next_start_continues_also_in_a_folder_that_was_moved(node: Node):
    await node.commands.succeed("topic", "create", "kept", "--segments", "2")
    await node.commands.succeed("produce", "kept", "--key-field", "id", stdin=jsonl(EVENTS))
    read = await node.commands.succeed("consume", "kept", "billing", "--from", "earliest", "--max", "25")

    code = await node.down()

    def left() -> list[list[str]]:
        return [command_line(process) for process in processes_of(node.run_id)]

    # Processes that the kernel kills with their parent may take a moment, and workers of Spark on a busy machine longer.
    await wait_until(lambda: not left(), lambda: f"no process is left: {left()}", 30)
    # The ports stay the same, so clients can wait for the restart.
    before = node.config.read_text()
    await _up_in(node, "moved")

    assert code == 0
    assert node.config.read_text() == before.replace("headgate-data", "moved")
    assert SENT == values(read.records() + await node.consume("kept", "billing"))
    again = await node.commands.succeed("produce", "kept", "--key-field", "id", stdin=jsonl(EVENTS))
    assert "stored 60" in again.err
    assert len(await node.consume("kept", "billing")) == len(EVENTS)
    await node.down()
    await _up_in(node, "headgate-data")  # Later tests use it where it was.


async def _up_in(node: Node, folder: str) -> None:
    node.data = node.data.rename(node.folder / folder)
    node.config = node.commands.config = node.data / "client.toml"
    await node.up("--shards", "4")
