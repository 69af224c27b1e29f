"""Client ids of daemons on one broker: clusters and daemons of one name do not share them; one used twice is reported."""

import json
import random
from pathlib import Path

import pytest

from controller.leadership.session_secret import SessionSecret
from controller.settings.sections import InstanceSettings
from headgate.protocol.codec import daemon_client_id
from tests.support.servers.cluster import Cluster, zookeeper_client
from tests.support.servers.programs import TEST_SECONDS, get, metric, wait_until
from tests.support.servers.raw_clients import raw_transport

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


async def test_only_a_program_with_the_same_client_id_disconnects_a_daemon(tmp_path: Path) -> None:
    async with Cluster(tmp_path, broker_kind="mosquitto") as cluster:
        daemon = await cluster.start_leader("one")
        cluster.sections["instance"] = InstanceSettings(name="one")
        twin = await cluster.start_daemon("twin")
        await wait_until(lambda: twin.log_entries("instance.name_in_use"), twin.log)
        async with raw_transport(cluster.client_config(), daemon_client_id("other-cluster", "one")) as other:
            await wait_until(lambda: other.connected, "the daemon of another cluster is connected")
            await cluster.commands.succeed("topic", "create", "orders")
        own_id = daemon_client_id(cluster.name, "one")
        with zookeeper_client(cluster) as client:
            digits = json.loads(client.get(f"/headgate/{cluster.name}/config")[0])["session_secret"]
        suffix = SessionSecret(digits).suffix(own_id)
        async with raw_transport(cluster.client_config(), own_id) as thief:
            await wait_until(lambda: thief.connected, "a client with the known part of an id is connected")
            await cluster.commands.succeed("topic", "list")
        assert len(daemon.log_entries("broker.connected")) == 1, "it took nothing over"

        async with raw_transport(cluster.client_config(), own_id, secret_suffix=suffix, rng=random.Random(1)):

            async def reported() -> bool:
                taken = "headgate_broker_sessions_taken_over_total"
                return await metric(daemon.http_address, taken, connection="daemon") >= 1

            await wait_until(reported, "the daemon counts that its client id is used twice")

        assert [own_id] == [each["client_id"] for each in daemon.log_entries("mqtt.session_taken_over")]
        await daemon.until_leading()
        _, metrics = await get(daemon.http_address, "/metrics")
        _, status = await get(daemon.http_address, "/api/v1/cluster")
        assert not any(secret in shown for shown in (daemon.log(), metrics, status) for secret in (digits, suffix))
