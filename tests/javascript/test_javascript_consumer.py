"""The consumer in JavaScript, with real daemons and a real drain check."""

import asyncio
import json
import signal
import subprocess
import time
from collections import Counter
from functools import partial
from operator import itemgetter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from headgate import ConsumedRecord, Consumer
from tests.javascript.conftest import Start
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import wait_until, whole_lines

KEYS, COUNT = 7, 300
Records = list[tuple[int, str, int]]
"""(segment, key, value)."""

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


@pytest_asyncio.fixture(loop_scope="module")
async def consume(start: Start, cluster: Cluster) -> Start:
    """Start a program that consumes the subscription billing."""
    if cluster.spark.pid is None:
        await cluster.start_spark()
    named = "--subscription", "billing", "--ledger", urlsplit(cluster.ledger_url).path
    return lambda program, out, *options: start(program, cluster, out, *named, *options)


def printed(out: Path, headers: tuple[str, ...] = ("kind=a", "kind=")) -> Records:
    """Return each record that the consumer has printed. Those of a key are in order."""
    rows = [line.split("\t") for line in whole_lines(out) if "\t" in line]
    assert all(row[4:] == [*headers] for row in rows if headers), rows[-20:]
    records = [(int(segment), key, int(value)) for segment, _, key, value, *_ in rows]
    assert sorted(records, key=itemgetter(1)) == sorted(records, key=itemgetter(1, 2)), "each key is in order"
    return records


async def produce(cluster: Cluster, values: range) -> None:
    lines = b"".join(b"key-%d\t%d\n" % (value % KEYS, value) for value in values)
    options = "--key-separator", "\t", "--header", "kind=a", "--header", "kind="
    await cluster.commands.succeed("produce", "orders", *options, stdin=lines)


Handled = list[tuple[int, str, int]]
"""(ms since 1970, key, value)."""


def handled(out: Path) -> Handled:
    """Return what worker.mjs has handled."""
    rows = [line.split("\t") for line in whole_lines(out)] if out.exists() else []
    return [(int(at_ms), key, int(value)) for _, _, key, value, _, at_ms in rows]


async def assigned(cluster: Cluster, consumers: set[str]) -> None:
    """Wait until these consumers hold something of the topic."""

    async def is_so() -> bool:
        described = await cluster.commands.succeed("subscription", "describe", "orders", "billing", "--json")
        return consumers == {each["consumer"] for each in described.document()["consumers"] if each["segments"]}

    await wait_until(is_so, "each consumer holds something", 60)


async def test_consumers_in_python_and_javascript_share_a_segment_across_a_split_and_the_kill_of_one(
    consume: Start, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    outs = tmp_path / "a.out", tmp_path / "b.out"
    own: Handled = []

    def everything() -> list[Handled]:
        return [own, *map(handled, outs)]

    def handle(record: ConsumedRecord) -> None:
        own.append((time.time_ns() // 1_000_000, record.key.decode(), int(record.value)))

    def left(values: range) -> set[int]:
        return set(values) - {value for each in everything() for _, _, value in each}

    async def share(values: range, readers: int) -> None:
        """Store values, and wait until each is handled, by so many consumers."""
        await produce(cluster, values)
        await wait_until(lambda: not left(values), lambda: f"{len(left(values))} are not handled", 90)
        assert readers == sum(any(value in values for _, _, value in each) for each in everything())

    names = {"topic": "orders", "subscription": "billing", "name": "python", "start": "earliest"}
    async with Consumer(cluster.client_config(), **names) as python:
        running = asyncio.create_task(python.run(handle))
        first = await consume("worker.mjs", outs[0], "--consumer", "a")
        await assigned(cluster, {"a", "python"})
        await share(range(COUNT), 2)
        await cluster.commands.succeed("topic", "split", "orders", "0")
        await share(range(COUNT, 2 * COUNT), 2)
        second = await consume("worker.mjs", outs[1], "--consumer", "b")
        await assigned(cluster, {"a", "b", "python"})
        await share(range(2 * COUNT, 3 * COUNT), 3)
        await asyncio.gather(first.kill(), produce(cluster, range(3 * COUNT, 4 * COUNT)))
        await share(range(4 * COUNT, 5 * COUNT), 2)
        assert await second.terminate() == 0, second.errors()
        python.stop()
        await running
    every = sorted(record for each in everything() for record in each)
    counts = Counter(value for _, _, value in every)
    assert set(range(5 * COUNT)) == counts.keys()
    assert {value for value, count in counts.items() if count > 1} <= {value for _, _, value in handled(outs[0])}
    first_times = list(dict.fromkeys((key, value) for _, key, value in every))
    assert sorted(first_times, key=itemgetter(0)) == sorted(first_times), "each key is in order"


async def drained(consume: Start, out: Path, *options: str) -> tuple[Records, list[str], dict[str, int]]:
    """Run until everything is read; return the records, the callbacks for segments, and the counts."""
    worker = await consume("worker.mjs", out, *options)
    assert await worker.ended(60) == 0, worker.errors()
    *lines, counts = whole_lines(out)
    assert all(f"granted {line[0]}" in lines[:number] for number, line in enumerate(lines) if "\t" in line)
    return printed(out, headers=()), sorted(line for line in lines if "\t" not in line), json.loads(counts)


async def test_a_run_in_batches_ends_once_it_has_caught_up_with_a_split_and_calls_back_for_its_segments(
    consume: Start, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    await produce(cluster, range(COUNT))
    await cluster.commands.succeed("topic", "split", "orders", "0")
    await produce(cluster, range(COUNT, 2 * COUNT))
    records, callbacks, counts = await drained(consume, tmp_path / "first.out", "--batch", "20")
    assert sorted(value for _, _, value in records) == list(range(2 * COUNT))
    assert [2 * COUNT] * 3 == [counts[name] for name in ("handled", "deliveredRecords", "acknowledgedRecords")]
    assert counts["handlerCalls"] <= COUNT
    assert counts["unhandled"] == counts["queuedRecords"] == 0
    revoked = ["revoked 0 false", "revoked 1 true", "revoked 2 true"]
    assert ["granted 0", "granted 1", "granted 2", *revoked] == callbacks
    again, _, counts = await drained(consume, tmp_path / "again.out", "--batch", "20")
    assert ([], 0, 0) == (again, counts["handlerCalls"], counts["heldSegments"]), "everything is acknowledged"


async def test_a_run_of_a_queue_that_has_caught_up_has_stored_its_dead_letters(
    consume: Start, cluster: Cluster, tmp_path: Path
) -> None:
    for topic in ("orders", "dead"):
        await cluster.commands.succeed("topic", "create", topic, "--segments", "2")
    subscription = "orders", "billing"
    await cluster.commands.succeed("subscription", "create", *subscription, "--type", "queue", "--from", "earliest")
    policy = "--max-deliveries", "3", "--dead-letter", "dead"
    await cluster.commands.succeed("subscription", "set", *subscription, *policy)
    await produce(cluster, range(COUNT))
    records, _, counts = await drained(consume, tmp_path / "queue.out", "--type", "QUEUE", "--batch", "1")
    assert sorted(value for _, _, value in records) == [n for n in range(COUNT) if n != 13]
    assert (COUNT - 1, 3, 2) == tuple(counts[name] for name in ("handled", "redelivered", "redeliveredRecords"))
    assert [13] == [each["value"] for each in (await cluster.commands.succeed("read", "dead")).records()]


async def test_a_key_that_run_has_parked_is_resumed_in_order_after_a_split_under_its_own_traffic_and_one_is_dropped(
    consume: Start, cluster: Cluster, tmp_path: Path
) -> None:
    out, subscription = tmp_path / "parked.out", ("orders", "billing")
    for topic in ("orders", "dead"):
        await cluster.commands.succeed("topic", "create", topic, "--segments", "1")
    await cluster.commands.succeed("subscription", "create", *subscription, "--type", "stream", "--from", "earliest")
    await cluster.commands.succeed("subscription", "set", *subscription, "--dead-letter", "dead")

    async def until(handled: int, **keys: int) -> None:
        """Wait until so many records are handled, and so many of each of ``keys`` are parked."""

        async def is_so() -> bool:
            found = await cluster.commands.succeed("subscription", "parked", *subscription, "--json")
            parked = {each["key"]: each["records"] for each in found.document()}
            return len(printed(out, headers=())) >= handled and parked == {f"key-{key[1]}": keys[key] for key in keys}

        await wait_until(is_so, lambda: f"{len(printed(out, headers=()))} of {handled} are handled", 90)

    await produce(cluster, range(280))
    worker = await consume("worker.mjs", out, "--poison", "key-3,key-5")
    await until(200, k3=40, k5=40)
    await cluster.commands.succeed("topic", "split", "orders", "0")
    await produce(cluster, range(280, 560))
    await until(400, k3=80, k5=80)
    worker.send_signal(signal.SIGUSR2)
    await cluster.commands.succeed("subscription", "drop", *subscription, "key-5", "--yes")
    await cluster.commands.succeed("subscription", "resume", *subscription, "key-3")
    for first in range(560, 840, 28):
        await produce(cluster, range(first, first + 28))
    await until(760)
    assert await worker.terminate() == 0, worker.errors()
    expected = [value for value in range(840) if value % KEYS != 5 or value >= 560]
    assert expected == sorted(value for _, _, value in printed(out, headers=()))


async def test_parallel_handlers_get_each_record_once_and_in_the_order_of_its_key_across_a_split_and_a_change_of_leader(
    consume: Start, start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    await cluster.commands.succeed("cluster", "set-shards", "4")  # by which the name belongs to another shard
    await produce(cluster, range(COUNT))
    out = tmp_path / "javascript.out"
    read = partial(printed, out, headers=())
    consumer = await consume("worker.mjs", out, "--consumer", "a")
    await wait_until(read, "the first segment is read")
    await cluster.commands.succeed("topic", "split", "orders", "0")
    producer = await start("produce.mjs", cluster, tmp_path / "producer.out", stdin=subprocess.PIPE)
    producer.stdin.write(b"".join(b"key-%d\t%d\n" % (value % KEYS, value) for value in range(COUNT, 2 * COUNT)))
    producer.stdin.close()
    assert await producer.ended(60) == 0, producer.errors()
    assert f"done {COUNT} resent 0" == producer.lines()[-1]
    await wait_until(lambda: len(read()) >= 2 * COUNT, lambda: f"{len(read())} are read", 60)
    await cluster.start_daemon("two")
    await cluster.kill("one")
    await produce(cluster, range(2 * COUNT, 3 * COUNT))
    await wait_until(lambda: len(read()) >= 3 * COUNT, lambda: f"{len(read())} are read", 60)
    assert await consumer.terminate() == 0, consumer.errors()
    records = read()
    assert any(line.split("\t")[4] != "1" for line in whole_lines(out)), "keys are handled in parallel"
    assert Counter(value for _, _, value in records) == Counter(range(3 * COUNT))
    segments = [segment for segment, _, _ in records]
    assert set(segments) == {0, 1, 2}
    assert 0 not in segments[segments.count(0) :], "a parent's records come before those of its children"
    await consume("consume.mjs", tmp_path / "again.out")
    await produce(cluster, range(3 * COUNT, 3 * COUNT + 1))
    await wait_until(lambda: printed(tmp_path / "again.out"), "the next start reads on")
    assert [value for _, _, value in printed(tmp_path / "again.out")] == [3 * COUNT], "the rest is acknowledged"
