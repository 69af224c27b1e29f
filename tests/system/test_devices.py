"""Plain devices over real servers: `mosquitto_pub` is the producer, and the leader is killed."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
from pathlib import Path

import pytest

from controller.settings.load import IngestSettings
from tests.support.cluster import SHARDS, Cluster
from tests.support.programs import TEST_SECONDS, TIMEOUT_FACTOR, metric, wait_until
from tests.support.two_daemons import TwoDaemons

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(
        shutil.which("mosquitto") is None or shutil.which("mosquitto_pub") is None,
        reason="mosquitto and mosquitto_pub are missing; Debian has them in mosquitto and mosquitto-clients",
    ),
]


async def published(cluster: TwoDaemons | Cluster, key: str, values: range) -> None:
    """Publish one message a value, as a device would; returns once the broker has confirmed all of them."""
    process = await asyncio.create_subprocess_exec(
        *("mosquitto_pub", "-h", cluster.broker.host, "-p", str(cluster.broker.port), "-q", "1", "-l"),
        *("-t", f"headgate/{cluster.name}/publish/orders/{key}"),
        stdin=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(30 * TIMEOUT_FACTOR):
            await process.communicate(b"".join(b"%d\n" % value for value in values))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0


async def test_nothing_that_a_device_was_promised_is_lost_when_the_leader_dies(tmp_path: Path) -> None:
    """While somebody leads, in the moment of the kill, and while nobody leads."""
    async with TwoDaemons(tmp_path) as cluster:
        leader = await cluster.leader()
        successor = "two" if leader == "one" else "one"
        await cluster.create_topic("orders", segments=2)
        await published(cluster, "site-1/room-2", range(100))
        during = asyncio.create_task(published(cluster, "site-1/room-3", range(2000)))
        cluster.freeze(successor)  # nobody leads until it goes on, however long the devices take
        await cluster.kill(leader)
        await published(cluster, "site-1/room-2", range(100, 200))
        await during
        terms_before = await cluster.terms()
        cluster.thaw(successor)

        async def stored() -> dict[bytes, list[int]] | None:
            found: dict[bytes, list[int]] = {}
            for _, _, key, value in await cluster.records():
                found.setdefault(key, []).append(int(value))
            counts = {key: len(set(values)) for key, values in found.items()}
            return found if counts == {b"site-1/room-2": 200, b"site-1/room-3": 2000} else None

        records = await wait_until(stored, "every record is in the ledger", 30)
        terms = await cluster.terms()

    assert [leader] == terms_before, "the last ones were published while nobody led"
    assert [leader, successor] == terms[:2]
    for values in records.values():
        # At least once: what was under way comes again, but nothing overtakes what came before it.
        first_seen = list(dict.fromkeys(values))
        assert sorted(first_seen) == first_seen


async def test_nothing_is_lost_when_all_daemons_and_the_broker_restart(tmp_path: Path) -> None:
    async with TwoDaemons(tmp_path) as cluster:
        await cluster.leader()
        await cluster.create_topic("orders", segments=1)
        await published(cluster, "a", range(10))
        await cluster.kill("one")
        await cluster.kill("two")
        await published(cluster, "a", range(10, 500))
        await cluster.broker.restart()
        await cluster.start("one")

        async def stored() -> bool:
            return {int(value) for _, _, _, value in await cluster.records()} == set(range(500))

        await wait_until(stored, "every record is in the ledger", 30)


async def test_switched_off_and_on_under_a_leader_nothing_is_lost_that_had_its_puback_before(tmp_path: Path) -> None:
    """More waits at the broker than it gives out at once. What is published while it is off is nobody's."""
    async with Cluster(tmp_path, session_seconds=30) as cluster:
        await cluster.start_servers()
        daemon = await cluster.start_daemon("only")
        await daemon.until_leading()
        await cluster.done("topic", "create", "orders", "--segments", "2")

        async def sessions() -> int:
            return int(await metric(daemon.http, "headgate_device_session_open"))

        async def all_are_open() -> bool:
            return await sessions() == SHARDS

        async def none_is_open() -> bool:
            return await daemon.leads() == SHARDS and await sessions() == 0

        async def values(key: bytes) -> list[int]:
            """Each once: what was under way may come again, but nothing overtakes what came before it."""
            return list(dict.fromkeys(int(value) for found, value in await cluster.stored() if found == key))

        await published(cluster, "before", range(100))
        await wait_until(all_are_open, "every shard has a session")
        daemon.running.signal(signal.SIGSTOP)
        await published(cluster, "waiting", range(1500))
        cluster.reload(daemon, daemon.settings.replace(ingest=IngestSettings(mqtt_devices=False)))
        daemon.running.signal(signal.SIGCONT)

        await wait_until(none_is_open, "every session was left", 60)
        assert list(range(100)) == await values(b"before")
        assert list(range(1500)) == await values(b"waiting")
        assert {0, 1} == {line["shard"] for line in daemon.log_entries("device.session_left")}
        await published(cluster, "nobodys", range(10))

        cluster.reload(daemon, daemon.settings)
        counter = itertools.count()

        async def taken_in_again() -> bool:
            number = next(counter)
            await published(cluster, "after", range(number, number + 1))
            return bool(await values(b"after"))

        await wait_until(taken_in_again, "devices are taken in again")
        await published(cluster, "last", range(100))

        async def stored() -> bool:
            return await values(b"last") == list(range(100))

        await wait_until(stored, "what is published from then on is stored", 30)
        assert [] == await values(b"nobodys")
        assert [["ingest.mqtt_devices"]] * 2 == [line["applied"] for line in daemon.log_entries("settings.reloaded")]
