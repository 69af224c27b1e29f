"""A frozen daemon finds commands in its socket whose clients have given up, and refuses them when it continues."""

import asyncio
from pathlib import Path

import pytest

from headgate import Admin, Client, NoLeaderError, load_client_config
from headgate.protocol.replies import Reply
from headgate.protocol.requests import AnyRequestBody, CreateTopic
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(TEST_SECONDS)]

SESSION_SECONDS = 60.0
"""The daemon keeps its session, and thus its term, while it is frozen."""
TIMEOUT_SECONDS = 2.0


async def test_a_command_that_failed_while_the_daemon_was_frozen_is_not_executed_later(tmp_path: Path):
    async with Cluster(tmp_path, SESSION_SECONDS, shards=1) as cluster:
        daemon = await cluster.start_leader()
        client = Client.from_config(load_client_config(cluster.client_config_path), "admin")
        async with client, Admin(client) as patient, Admin(client, timeout_seconds=TIMEOUT_SECONDS) as admin:
            await patient.create_topic("before")
            age_ms = await term_age_ms(client)

            daemon.process.freeze()
            send(client, CreateTopic(topic="in-its-socket", token="t"), age_ms + int(TIMEOUT_SECONDS * 1000))
            with pytest.raises(NoLeaderError, match="the command was not executed, and will not be later"):
                await admin.create_topic("asked")
            daemon.process.thaw()

            assert ["before"] == [topic.topic for topic in await patient.list_topics()]
            await patient.create_topic("after")


async def term_age_ms(client: Client) -> int:
    """Return how long the term has lasted, as a client asks for it."""
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    client.replies.expect(send(client, CreateTopic(topic="asking", token="a"), 0), reply.set_result)
    async with asyncio.timeout(60):
        refused = (await reply).body
    assert refused.term_age_ms is not None
    return refused.term_age_ms


def send(client: Client, body: AnyRequestBody, max_term_age_ms: int) -> int:
    """Send one copy of a command; return its request id."""
    leader = client.leader(0)
    request_id = next(client.request_ids)
    assert client.send(0, request_id, leader.leader_epoch, body, max_term_age_ms)
    return request_id
