"""The consumer in JavaScript, with real daemons and a real drain check."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headgate.ledger.paths import chunk_path
from tests.support.samples.compaction import compact
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import wait_until, whole_lines

KEYS, COUNT = 7, 300

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, shards=1) as cluster:
        await cluster.start_servers()
        await cluster.start_daemon("one")
        await cluster.leader()
        yield cluster


@asynccontextmanager
async def running(program: Path, cluster: Cluster, out: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the consumer; it is killed if it has not ended in the block."""
    with out.open("wb") as to_out:
        consumer = await asyncio.create_subprocess_exec(
            *("node", str(program), "--cluster", cluster.name, "--topic", "orders", "--subscription", "billing"),
            *("--port", str(cluster.broker.port), "--ledger", urlsplit(cluster.ledger_url).path),
            stdout=to_out,
            stderr=to_out,
            env=os.environ | {"NODE_OPTIONS": ""},
        )
    try:
        yield consumer
    finally:
        if consumer.returncode is None:
            consumer.kill()
            await consumer.wait()


def printed(out: Path) -> list[tuple[int, bytes, int]]:
    """Return (segment, key, value) of each record that the consumer has printed; fails if it printed anything else."""
    rows = [line.split("\t") for line in whole_lines(out)]
    assert all(row[4:] == ["kind=a", "kind="] for row in rows), rows[-20:]
    return [(int(segment), key.encode(), int(value)) for segment, _, key, value, *_ in rows]


async def produce(cluster: Cluster, values: range) -> None:
    lines = b"".join(b"key-%d\t%d\n" % (value % KEYS, value) for value in values)
    options = "--key-separator", "\t", "--header", "kind=a", "--header", "kind="
    await cluster.commands.succeed("produce", "orders", *options, stdin=lines)


async def test_the_consumer_reads_each_record_once_and_in_the_order_of_its_key_across_a_split_and_a_change_of_leader(
    programs: Path, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start_spark()
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    await produce(cluster, range(COUNT))
    out = tmp_path / "javascript.out"
    async with running(programs / "consume.mjs", cluster, out) as consumer:
        await wait_until(lambda: printed(out), "the first segment is read")
        await cluster.commands.succeed("topic", "split", "orders", "0")
        await produce(cluster, range(COUNT, 2 * COUNT))
        await wait_until(lambda: len(printed(out)) >= 2 * COUNT, lambda: f"{len(printed(out))} are read", 60)
        await cluster.start_daemon("two")
        await cluster.kill("one")
        await produce(cluster, range(2 * COUNT, 3 * COUNT))
        await wait_until(lambda: len(printed(out)) >= 3 * COUNT, lambda: f"{len(printed(out))} are read", 60)
        consumer.terminate()
        await asyncio.wait_for(consumer.wait(), 30)

    assert consumer.returncode == 0, whole_lines(out)[-20:]
    records = printed(out)
    assert Counter(value for _, _, value in records) == Counter(range(3 * COUNT))
    for key in {key for _, key, _ in records}:
        values = [value for _, found, value in records if found == key]
        assert values == sorted(values), key
    segments = [segment for segment, _, _ in records]
    assert set(segments) == {0, 1, 2}
    assert 0 not in segments[segments.count(0) :], "a parent's records come before those of its children"
    async with running(programs / "consume.mjs", cluster, tmp_path / "again.out"):
        await produce(cluster, range(3 * COUNT, 3 * COUNT + 1))
        await wait_until(lambda: printed(tmp_path / "again.out"), "the next start reads on")
        assert [value for _, _, value in printed(tmp_path / "again.out")] == [3 * COUNT], "the rest is acknowledged"


async def test_the_consumer_reads_trimmed_chunks_from_compacted_objects(
    programs: Path, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "4")
    for first in range(0, COUNT, COUNT // 3):
        await produce(cluster, range(first, first + COUNT // 3))
    ledger = cluster.ledger()
    newest = await ledger.newest()
    await compact(ledger, 1, newest - 2)
    await compact(ledger, newest - 1, newest - 1, parts=2)
    for number in range(2, newest):
        await ledger.store.delete(chunk_path(0, number))
    out = tmp_path / "javascript.out"
    async with running(programs / "consume.mjs", cluster, out):
        await wait_until(lambda: len(printed(out)) >= COUNT, lambda: f"{len(printed(out))} are read")

    assert Counter(value for _, _, value in printed(out)) == Counter(range(COUNT))


async def test_the_consumer_ends_when_an_older_ledger_is_put_back(
    programs: Path, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    await produce(cluster, range(COUNT))
    ledger, out = cluster.ledger(), tmp_path / "javascript.out"
    async with running(programs / "consume.mjs", cluster, out) as consumer:
        await wait_until(lambda: len(printed(out)) == COUNT, "the first records are read")
        kept = await ledger.newest()
        await produce(cluster, range(COUNT, 2 * COUNT))
        await wait_until(lambda: len(printed(out)) == 2 * COUNT, "the lost records are read")
        await cluster.kill("one")
        for number in range(kept + 1, await ledger.newest() + 1):
            await ledger.store.delete(chunk_path(0, number))
        await cluster.start_daemon("two")
        await asyncio.wait_for(consumer.wait(), 60)

    assert consumer.returncode == 1
    assert any("other_history: consumer " in line for line in whole_lines(out)), whole_lines(out)[-20:]
