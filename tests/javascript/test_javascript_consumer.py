"""The consumer in JavaScript, with real daemons and a real drain check."""

import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.javascript.conftest import Start
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import wait_until, whole_lines

KEYS, COUNT = 7, 300

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


@pytest.fixture
def consume(start: Start, cluster: Cluster) -> Start:
    """Start a program that consumes the subscription billing."""
    named = "--subscription", "billing", "--ledger", urlsplit(cluster.ledger_url).path
    return lambda program, out, *options: start(program, cluster, out, *named, *options)


def printed(out: Path, headers: tuple[str, ...] = ("kind=a", "kind=")) -> list[tuple[int, bytes, int]]:
    """Return (segment, key, value) of each record that the consumer has printed; fails if it printed anything else."""
    rows = [line.split("\t") for line in whole_lines(out)]
    assert all(row[4:] == [*headers] for row in rows if headers), rows[-20:]
    return [(int(segment), key.encode(), int(value)) for segment, _, key, value, *_ in rows]


async def produce(cluster: Cluster, values: range) -> None:
    lines = b"".join(b"key-%d\t%d\n" % (value % KEYS, value) for value in values)
    options = "--key-separator", "\t", "--header", "kind=a", "--header", "kind="
    await cluster.commands.succeed("produce", "orders", *options, stdin=lines)


async def test_parallel_handlers_get_each_record_once_and_in_the_order_of_its_key_across_a_split_and_a_change_of_leader(
    consume: Start, start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start_spark()
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    await cluster.commands.succeed("cluster", "set-shards", "4")  # by which the name belongs to another shard
    await produce(cluster, range(COUNT))
    out = tmp_path / "javascript.out"
    read = partial(printed, out, headers=())
    consumer = await consume("worker.mjs", out, "--consumer", "a")
    await wait_until(read, "the first segment is read")
    await cluster.commands.succeed("topic", "split", "orders", "0")
    producer = await start("produce.mjs", cluster, tmp_path / "producer.out", stdin=subprocess.PIPE)
    assert producer.stdin is not None
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
    for key in {key for _, key, _ in records}:
        values = [value for _, found, value in records if found == key]
        assert values == sorted(values), key
    segments = [segment for segment, _, _ in records]
    assert set(segments) == {0, 1, 2}
    assert 0 not in segments[segments.count(0) :], "a parent's records come before those of its children"
    await consume("consume.mjs", tmp_path / "again.out")
    await produce(cluster, range(3 * COUNT, 3 * COUNT + 1))
    await wait_until(lambda: printed(tmp_path / "again.out"), "the next start reads on")
    assert [value for _, _, value in printed(tmp_path / "again.out")] == [3 * COUNT], "the rest is acknowledged"
