"""The consumer in JavaScript, with real daemons and a real drain check."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headgate.ledger.paths import chunk_path
from headgate.model.position_token import decode_positions
from tests.support.samples.compaction import compact
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import wait_until, whole_lines

KEYS, COUNT = 7, 300

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


@asynccontextmanager
async def running(
    program: Path, cluster: Cluster, out: Path, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the consumer; it is killed if it has not ended in the block."""
    with out.open("wb") as to_out:
        consumer = await asyncio.create_subprocess_exec(
            *("node", str(program), "--cluster", cluster.name, "--topic", "orders", "--subscription", "billing"),
            *("--port", str(cluster.broker.port), "--ledger", urlsplit(cluster.ledger_url).path, *options),
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


def printed(out: Path, headers: tuple[str, ...] = ("kind=a", "kind=")) -> list[tuple[int, bytes, int]]:
    """Return (segment, key, value) of each record that the consumer has printed; fails if it printed anything else."""
    rows = [line.split("\t") for line in whole_lines(out)]
    assert all(row[4:] == [*headers] for row in rows if headers), rows[-20:]
    return [(int(segment), key.encode(), int(value)) for segment, _, key, value, *_ in rows]


def handled(out: Path) -> list[tuple[int, int, int]]:
    """Return (value, delivery, handlers at work) of each call of worker.mjs."""
    return [tuple(map(int, line.split("\t")[3:])) for line in whole_lines(out)]  # type: ignore[misc]


async def produce(cluster: Cluster, values: range) -> None:
    lines = b"".join(b"key-%d\t%d\n" % (value % KEYS, value) for value in values)
    options = "--key-separator", "\t", "--header", "kind=a", "--header", "kind="
    await cluster.commands.succeed("produce", "orders", *options, stdin=lines)


async def test_parallel_handlers_get_each_record_once_and_in_the_order_of_its_key_across_a_split_and_a_change_of_leader(
    programs: Path, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.start_spark()
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
    await produce(cluster, range(COUNT))
    out = tmp_path / "javascript.out"
    read = partial(printed, out, headers=())
    async with running(programs / "worker.mjs", cluster, out, "--consumer", "a") as consumer:
        await wait_until(read, "the first segment is read")
        await cluster.commands.succeed("topic", "split", "orders", "0")
        await produce(cluster, range(COUNT, 2 * COUNT))
        await wait_until(lambda: len(read()) >= 2 * COUNT, lambda: f"{len(read())} are read", 60)
        await cluster.start_daemon("two")
        await cluster.kill("one")
        await produce(cluster, range(2 * COUNT, 3 * COUNT))
        await wait_until(lambda: len(read()) >= 3 * COUNT, lambda: f"{len(read())} are read", 60)
        consumer.terminate()
        await asyncio.wait_for(consumer.wait(), 30)

    assert consumer.returncode == 0, whole_lines(out)[-20:]
    records = read()
    assert max(working for _, _, working in handled(out)) > 1, "keys are handled in parallel"
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


async def test_a_queue_delivers_again_what_has_failed_and_what_a_killed_consumer_had_begun(
    programs: Path, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "2")
    await cluster.commands.succeed("topic", "create", "dead", "--segments", "1")
    await cluster.commands.succeed("subscription", "create", "orders", "billing", "--type", "queue")
    await cluster.commands.succeed(
        "subscription", "set", "orders", "billing", "--max-deliveries", "9", "--dead-letter", "dead"
    )
    outs = [tmp_path / "a.out", tmp_path / "b.out"]

    def succeeded(delivered_before: bool = False) -> set[int]:
        calls = [call for out in outs for call in handled(out)]
        return {value for value, delivery, _ in calls if delivery > 1 or not (delivered_before or value % 10 == 7)}

    async with (
        running(programs / "worker.mjs", cluster, outs[0], "--consumer", "a", "--type", "QUEUE") as killed,
        running(programs / "worker.mjs", cluster, outs[1], "--consumer", "b", "--type", "QUEUE") as consumer,
    ):
        await produce(cluster, range(COUNT))
        await wait_until(lambda: all(map(handled, outs)), "both consumers work")
        killed.kill()
        await produce(cluster, range(COUNT, 2 * COUNT))
        everything = set(range(2 * COUNT))
        await wait_until(lambda: succeeded() == everything, lambda: f"{len(succeeded())} are handled", 60)
        consumer.terminate()
        await asyncio.wait_for(consumer.wait(), 30)

    assert consumer.returncode == 0, whole_lines(outs[1])[-20:]
    state = (await cluster.commands.succeed("subscription", "describe", "orders", "billing", "--json")).document()
    assert [0, 0] == [segment["unacknowledged"] for segment in state["segments"]], "a graceful end stores everything"
    again = succeeded(delivered_before=True)
    assert {*range(7, 2 * COUNT, 10)} < again, "and what the killed consumer had begun"


async def test_a_checkpoint_continues_at_its_positions(programs: Path, cluster: Cluster, tmp_path: Path) -> None:
    await cluster.commands.succeed("topic", "create", "orders", "--segments", "2")
    positions = tmp_path / "positions"
    for start in (0, COUNT):
        await produce(cluster, range(start, start + COUNT))
        out = tmp_path / f"{start}.out"
        read = partial(printed, out)
        options = "--type", "CHECKPOINT", "--positions", str(positions), "--consumer", f"from-{start}"
        async with running(programs / "consume.mjs", cluster, out, *options) as consumer:
            await wait_until(lambda read=read: len(read()) >= COUNT, "they are read")
            consumer.terminate()
            await asyncio.wait_for(consumer.wait(), 30)
        assert Counter(value for _, _, value in read()) == Counter(range(start, start + COUNT))
        token = decode_positions(positions.read_text())
        assert sum(token.positions.values()) == start + COUNT, "the Python client reads them, too"
