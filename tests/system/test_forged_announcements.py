"""Forged leader announcements: clients and daemons do not believe them.

The forger may write them: the broker has no access rules or, with TLS, the forger has stolen the rights of a daemon.
"""

import asyncio
from pathlib import Path

import msgspec
import pytest

from headgate import Admin, Producer
from headgate.protocol import messages as m
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, metric, wait_until
from tests.support.servers.raw_clients import raw_transport
from tests.support.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(TEST_SECONDS)]

PROMPT_SECONDS = 5.0
"""For a request to a leader that works. Clients that believed a forgery would wait in vain."""


def forgeries() -> list[bytes]:
    genuine = {"shard": 0, "leader_epoch": 1, "instance": "x", "window": 128}
    epochs = (2, 2**31 - 1, 10**15, 2**62)
    return [msgspec.msgpack.encode(genuine | {"leader_epoch": epoch}) for epoch in epochs] + [b"", b"garbage"]


async def test_forged_announcements_stop_no_client_and_no_failover(tmp_path: Path) -> None:
    async with Cluster(tmp_path, shards=1, broker_kind="mosquitto") as cluster:
        await cluster.start_servers()
        one = await cluster.start_daemon("one")
        await one.until_leading()
        two = await cluster.start_daemon("two")
        topic = m.leader_topic(cluster.name, 0)
        retained: list[bytes] = []
        async with (
            raw_transport(cluster.daemon_client_config(), "forger") as forger,
            raw_transport(cluster.daemon_client_config(), "reader") as reader,
            Admin(cluster.client_config()) as admin,
            Producer(cluster.client_config()) as producer,
        ):
            await until(lambda: forger.connected and reader.connected)
            await reader.subscribe(topic, lambda _, payload: retained.append(payload), retained=True)
            await admin.create_topic("orders", 1)
            for forged in forgeries():
                forger.publish(topic, forged, retain=True)
                async with asyncio.timeout(PROMPT_SECONDS):
                    await producer.send_and_wait("orders", b"key", forged)
                async with asyncio.timeout(PROMPT_SECONDS), Admin(cluster.client_config()) as late:
                    await late.describe_topic("orders")

            async def corrected() -> bool:
                counted = await metric(one.http_address, "headgate_foreign_announcements_total", shard="0")
                return counted >= 1 and b"one" in retained[-1]

            await wait_until(corrected, "the leader counts them and publishes its own again")
            assert one.log_entries("leader.announcement_replaced")

            forger.publish(topic, forgeries()[1], retain=True)
            await cluster.kill("one")
            await two.until_leading()
            async with asyncio.timeout(PROMPT_SECONDS):
                await producer.send_and_wait("orders", b"key", b"after")
                described = await admin.describe_topic("orders")

    assert [len(forgeries()) + 1] == [segment.next_offset for segment in described.segments]
