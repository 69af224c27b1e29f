"""MQTT devices on real servers: `mosquitto_pub` publishes, and the leader is killed."""

import asyncio
import itertools
import shutil
from pathlib import Path

import pytest

from controller.settings.sections import IngestSettings
from tests.support.servers.cluster import SHARDS, Cluster, Daemon
from tests.support.servers.programs import TEST_SECONDS, TIMEOUT_FACTOR, metric, wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(
        shutil.which("mosquitto") is None or shutil.which("mosquitto_pub") is None,
        reason="mosquitto and mosquitto_pub are missing; CI installs Debian's mosquitto and mosquitto-clients",
    ),
]


async def publish(cluster: Cluster, key: str, values: range, topic: str = "orders") -> None:
    """Publish one message per value, as a device does; return when the broker has acknowledged all of them."""
    config = cluster.client_config()
    secrets = (
        [] if config.ca_file is None else ["-u", config.username, "-P", config.password(), "--cafile", config.ca_file]
    )
    process = await asyncio.create_subprocess_exec(
        *("mosquitto_pub", "-h", cluster.broker.host, "-p", str(cluster.broker.port), "-q", "1", "-l", *secrets),
        *("-t", f"headgate/{cluster.name}/publish/{topic}/{key}"),
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


async def start_two_daemons(cluster: Cluster) -> None:
    await cluster.start_servers()
    await cluster.start_daemon("one")
    await cluster.start_daemon("two")


async def test_no_acknowledged_message_of_a_device_is_lost_when_the_leader_dies(tmp_path: Path) -> None:
    """Messages before the kill, during it, and while no daemon leads."""
    async with Cluster(tmp_path, shards=1, broker_kind="mosquitto") as cluster:
        await start_two_daemons(cluster)
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


async def test_no_message_is_lost_when_all_daemons_and_the_broker_restart(tmp_path: Path) -> None:
    async with Cluster(tmp_path, shards=1, broker_kind="mosquitto") as cluster:
        await start_two_daemons(cluster)
        await cluster.leader()
        await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
        await publish(cluster, "a", range(10))
        await cluster.kill("one")
        await cluster.kill("two")
        await publish(cluster, "a", range(10, 500))
        await cluster.broker.restart()
        await cluster.start_daemon("one")

        async def stored() -> bool:
            return {int(value) for _, value in await cluster.stored()} == set(range(500))

        await wait_until(stored, "every record is in the ledger", 30)


@pytest.mark.nightly
async def test_no_message_acknowledged_before_the_switch_is_lost_when_devices_are_switched_off_and_on(
    tmp_path: Path,
) -> None:
    """More messages wait at the broker than it sends at once. Messages published while devices are off are not stored."""
    async with Cluster(tmp_path, session_seconds=30) as cluster:
        await cluster.start_servers()
        daemon = await cluster.start_daemon("only")
        await daemon.until_leading()
        await cluster.commands.succeed("topic", "create", "orders", "--segments", "2")

        async def sessions() -> list[int]:
            name, states = "headgate_device_sessions", ("subscribed", "missing", "ending")
            return [int(await metric(daemon.http_address, name, state=state)) for state in states]

        async def all_are_open() -> bool:
            return await sessions() == [1, 0, 0]

        async def none_is_open() -> bool:
            return await daemon.leads() == SHARDS and await sessions() == [0, 0, 0]

        async def values(key: bytes) -> list[int]:
            """Each value once: messages in flight may be repeated, but no message overtakes an earlier one."""
            return list(dict.fromkeys(int(value) for found, value in await cluster.stored() if found == key))

        await publish(cluster, "before", range(100))
        await wait_until(all_are_open, "the topic has a session")
        daemon.process.freeze()
        await publish(cluster, "waiting", range(1500))
        cluster.reload(daemon.settings.replace(ingest=IngestSettings(mqtt_devices=False)))
        daemon.process.thaw()

        await wait_until(none_is_open, "every session has ended", 60)
        assert list(range(100)) == await values(b"before")
        assert list(range(1500)) == await values(b"waiting")
        assert 1 == len(daemon.log_entries("device.session_closed"))
        await publish(cluster, "while-off", range(10))

        cluster.reload(daemon.settings)
        counter = itertools.count()

        async def stored_again() -> bool:
            number = next(counter)
            await publish(cluster, "after", range(number, number + 1))
            return bool(await values(b"after"))

        await wait_until(stored_again, "messages of devices are stored again")
        await publish(cluster, "last", range(100))

        async def stored() -> bool:
            return await values(b"last") == list(range(100))

        await wait_until(stored, "later messages are stored", 30)
        assert [] == await values(b"while-off")
        assert [["ingest.mqtt_devices"]] * 2 == [line["applied"] for line in daemon.log_entries("settings.reloaded")]


async def test_messages_for_a_mistyped_topic_are_logged_and_counted(tmp_path: Path) -> None:
    async with Cluster(tmp_path, broker_kind="mosquitto") as cluster:
        await start_two_daemons(cluster)
        one, two = (cluster.daemons[name] for name in ("one", "two"))
        await wait_until(lambda: _leads_all(one, two), "every shard has a leader")
        await cluster.commands.succeed("topic", "create", "orders", "--segments", "1")
        name = "headgate_device_messages_rejected_total"

        async def counted() -> bool:
            await publish(cluster, "site-1", range(5), topic="ordres")
            rejected = [await metric(each.http_address, name, reason="unknown_topic") for each in (one, two)]
            return sum(rejected) >= 5

        await wait_until(counted, "the lost messages are counted")
        lines = [*one.log_entries("device.message_rejected"), *two.log_entries("device.message_rejected")]

    assert {(line["reason"], line["mqtt_topic"]) for line in lines} == {
        ("unknown_topic", f"headgate/{cluster.name}/publish/ordres/site-1")
    }


async def _leads_all(*daemons: Daemon) -> bool:
    return sum([await daemon.leads() for daemon in daemons]) == SHARDS
