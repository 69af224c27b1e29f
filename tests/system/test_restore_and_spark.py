"""docs/operations/backup.md, "Restore", with a Spark service that was left on the old ledger: it opens no gate."""

from pathlib import Path

import pytest

from headgate import Consumer
from headgate.ledger.ledger import if_exists
from headgate.model import entries as e
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, jsonl, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]
RECORDS = 6


async def drained(cluster: Cluster) -> list[list[int]]:
    """Return the segments of each drained fact in the ledger."""
    ledger, found, number = cluster.ledger(), [], 1
    while (chunk := await if_exists(ledger.read, number)) is not None:
        found += [entry.segments for entry in chunk.entries if isinstance(entry, e.SegmentsDrained)]
        number += 1
    return found


async def read_to_the_end_and_split(old: Cluster, backup: Path) -> None:
    """Make a backup with two of six records acknowledged; then acknowledge all of them, and split the segment."""
    await old.commands.succeed("topic", "create", "orders", "--segments", "1")
    file = old.folder / "lines.ndjson"
    file.write_bytes(jsonl({"id": f"k{n}", "n": n} for n in range(RECORDS)))
    await old.commands.succeed("produce", "orders", "--key-field", "id", str(file))
    await old.commands.succeed("consume", "orders", "billing", "--from", "earliest", "--max", "2")
    await old.commands.succeed("ledger", "copy", str(old.folder / "store"), str(backup))
    await old.commands.succeed("consume", "orders", "billing", "--exit-when-caught-up")
    await old.commands.succeed("topic", "split", "orders", "0")


@pytest.mark.nightly
async def test_a_spark_service_that_was_left_on_the_old_ledger_opens_no_gate(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "old", shards=1) as old:
        await old.start_leader()
        await read_to_the_end_and_split(old, tmp_path / "new" / "store")
        await old.stop("only")
    async with Cluster(tmp_path / "new", name="restored", shards=1) as restored:
        await restored.start_spark(old.ledger_url)
        daemon = await restored.start_leader()
        consumer = Consumer(restored.client_config(), topic="orders", subscription="billing")
        async with consumer:
            read = [await anext(consumer) for _ in range(RECORDS - 2)]
            await restored.commands.succeed("topic", "split", "orders", "0")

            async def degraded() -> bool:
                _, report = await daemon.health()
                reason = report["components"]["drain"]["reason"] or ""
                return report["state"] == "degraded" and old.ledger_url in reason and restored.ledger_url in reason

            await wait_until(degraded, "/readyz says that Spark counts another ledger", 60)
            doctor = await restored.commands.finish(
                "doctor", "--daemon-config", str(restored.folder / "only.toml"), "--json"
            )
            assert doctor.code == 1
            assert f"{old.ledger_url} was counted" in doctor.out
            explained = await restored.commands.succeed("explain", "orders", "billing")
            assert f"{old.ledger_url} was counted" in explained.out.replace("\n", " ")
            for record in read[:-1]:
                await consumer.acknowledge(record)
            await wait_until(lambda: daemon.log_entries("drain.wrong_ledger"), lambda: daemon.log()[-2000:])
            assert [] == await drained(restored)

            await restored.start_spark()
            await consumer.acknowledge(read[-1])

            async def opened() -> bool:
                return [[0]] == await drained(restored)

            await wait_until(opened, lambda: f"the segment is drained: {daemon.log()[-2000:]}", 60)
            assert await daemon.reports(200, "drain", "ok")
