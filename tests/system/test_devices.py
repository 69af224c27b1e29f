"""MQTT devices on real servers: `mosquitto_pub` publishes, and the leader is killed."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, TIMEOUT_FACTOR, wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(
        shutil.which("mosquitto") is None or shutil.which("mosquitto_pub") is None,
        reason="mosquitto and mosquitto_pub are missing; CI installs Debian's mosquitto and mosquitto-clients",
    ),
]


async def publish(cluster: Cluster, key: str, values: range) -> None:
    """Publish one message per value, as a device does; return when the broker has acknowledged all of them."""
    config = cluster.client_config()
    secrets = (
        [] if config.ca_file is None else ["-u", config.username, "-P", config.password(), "--cafile", config.ca_file]
    )
    process = await asyncio.create_subprocess_exec(
        *("mosquitto_pub", "-h", cluster.broker.host, "-p", str(cluster.broker.port), "-q", "1", "-l", *secrets),
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


async def test_no_acknowledged_message_of_a_device_is_lost_when_the_leader_dies(tmp_path: Path) -> None:
    """Messages before the kill, during it, and while no daemon leads."""
    async with Cluster(tmp_path, shards=1, broker_kind="mosquitto") as cluster:
        await cluster.start_servers()
        await cluster.start_daemon("one")
        await cluster.start_daemon("two")
        leader = await cluster.leader()
        successor = "two" if leader == "one" else "one"
        await cluster.commands.succeed("topic", "create", "orders", "--segments", "2")
        await publish(cluster, "site-1/floor-2", range(100))
        during = asyncio.create_task(publish(cluster, "site-1/floor-3", range(2000)))
        cluster.freeze(successor)  # no daemon leads until it is resumed, however long the devices take
        await cluster.kill(leader)
        await publish(cluster, "site-1/floor-2", range(100, 200))
        await during
        terms_before = await cluster.past_leaders()
        cluster.thaw(successor)

        async def stored() -> dict[bytes, list[int]] | None:
            found: dict[bytes, list[int]] = {}
            for key, value in await cluster.stored():
                found.setdefault(key, []).append(int(value))
            counts = {key: len(set(values)) for key, values in found.items()}
            return found if counts == {b"site-1/floor-2": 200, b"site-1/floor-3": 2000} else None

        records = await wait_until(stored, "every record is in the ledger", 30)
        terms = await cluster.past_leaders()

    assert [leader] == terms_before, "the last messages were published while no daemon led"
    assert [leader, successor] == terms[:2]
    for values in records.values():
        # At least once: messages in flight are repeated, but no message overtakes an earlier one.
        first_seen = list(dict.fromkeys(values))
        assert sorted(first_seen) == first_seen
