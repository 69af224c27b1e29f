"""Client ids of daemons on one broker: clusters do not share them, and one that is used twice is reported."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headgate.client.connection import Client
from headgate.protocol import messages as m
from headgate.transport.mqtt import MqttTransport
from tests.support.cluster import Cluster
from tests.support.programs import TEST_SECONDS, metric, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


async def test_only_a_program_with_the_same_client_id_disconnects_a_daemon(tmp_path: Path) -> None:
    async with Cluster(tmp_path, broker_kind="mosquitto") as cluster:
        await cluster.start_servers()
        daemon = await cluster.start_daemon("one")
        await daemon.until_leading()

        async with MqttTransport(
            cluster.broker.host, cluster.broker.port, m.daemon_client_id("other-cluster", "one")
        ) as other:
            await wait_until(lambda: other.connected, "the daemon of another cluster is connected")
            await cluster.commands.succeed("topic", "create", "orders")
        own_id = m.daemon_client_id(cluster.name, "one")
        connections = [line for line in daemon.log_entries("broker.connected") if line["client_id"] == own_id]
        assert len(connections) == 1

        async with MqttTransport(cluster.broker.host, cluster.broker.port, own_id, rng=random.Random(1)):

            async def reported() -> bool:
                return await metric(daemon.http_address, "headgate_broker_sessions_taken_over_total") >= 1

            await wait_until(reported, "the daemon counts that its client id is used twice")

        (line,) = daemon.log_entries("mqtt.session_taken_over")
        assert line["client_id"] == own_id
        await daemon.until_leading()


async def test_two_clients_with_one_id_are_reported_by_a_daemon(tmp_path: Path) -> None:
    async with Cluster(tmp_path, broker_kind="mosquitto") as cluster:
        await cluster.start_servers()
        daemon = await cluster.start_daemon("one")
        await daemon.until_leading()
        older, newer = (
            Client(
                transport=MqttTransport(cluster.broker.host, cluster.broker.port, "till"),
                store=None,
                cluster=cluster.name,
                client_id="till",
                now_ms=lambda started_ms=started_ms: started_ms,
            )
            for started_ms in (1, 2)
        )

        async def reported() -> bool:
            return await metric(daemon.http_address, "headgate_client_id_conflicts_total") >= 1

        async with older, newer:
            await wait_until(reported, "the daemon counts that a client id is used twice")
        assert daemon.log_entries("client.id_used_twice")[0]["client_id"] == "anonymous/till"
