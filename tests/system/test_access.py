"""Users of a real broker, with the access control list that `headgate access export` makes, and a real daemon."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from headgate import Admin, Consumer, Producer, ProducerSettings, RequestRejectedError, SubscriptionType
from tests.support.servers.cluster import ONE_USER_OF_EACH_ROLE, Cluster, SecuredTestCluster
from tests.support.servers.programs import TEST_SECONDS, metric, wait_until
from tests.support.servers.raw_clients import raw_transport
from tests.support.waiting import until
from web.tokens import token_line

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(TEST_SECONDS)]

ACCESS = f"""
{ONE_USER_OF_EACH_ROLE}
[[users.rival]]
role = "producer"
topics = ["other"]
[[users.tenant]]
role = "administrator"
topics = ["tenant-*"]
[quotas.users.tenant]
topics = 1
requests_per_second = 40
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredTestCluster]:
    async with SecuredTestCluster(tmp_path_factory.mktemp("access"), shards=1, access=ACCESS) as cluster:
        await cluster.start_leader()
        async with Admin(cluster.config_of("operator")) as admin:
            await admin.create_topic("orders", 1)
        yield cluster


async def test_every_role_does_its_work(cluster: SecuredTestCluster) -> None:
    async with Producer(cluster.config_of("shop")) as producer:
        await producer.send_and_wait("orders", b"key", b"1")
    async with raw_transport(cluster.config_of("gateway"), "sensor") as sensor:
        await until(lambda: sensor.connected)
        sensor.publish(f"headgate/{cluster.name}/publish/orders/key", b"2")
        options = {"topic": "orders", "subscription": "billing", "type": SubscriptionType.STREAM, "start": "earliest"}
        async with Consumer(cluster.config_of("billing"), **options) as consumer, asyncio.timeout(60):
            values = [(await anext(consumer)).value, (await anext(consumer)).value]
    async with Admin(cluster.config_of("grafana")) as admin:
        topics = await admin.list_topics()
        with pytest.raises(RequestRejectedError, match="user grafana may not administer topic orders"):
            await admin.delete_topic("orders", force=True)

    assert [b"1", b"2"] == sorted(values)
    assert ["orders"] == [topic.topic for topic in topics]
    log = cluster.daemons["only"].process.log_path.read_text()
    assert not [user for user in cluster.users.users if cluster.password_of(user) in log]


async def test_a_user_beyond_its_quotas_slows_down_and_nothing_is_lost_or_stored_twice(cluster: SecuredTestCluster):
    """Two programs with windows of 128 batches are far beyond a rate of 40."""
    address = cluster.daemons["only"].http_address
    async with Admin(cluster.config_of("tenant")) as tenant:
        await tenant.create_topic("tenant-a", 1)
        with pytest.raises(RequestRejectedError, match=r"user tenant has 1 topics on this shard, .* quota topics is 1"):
            await tenant.create_topic("tenant-b", 1)

    async def produce(key: bytes) -> list[int]:
        settings = ProducerSettings(batch_bytes=1, max_in_flight=128)
        async with Producer(cluster.config_of("tenant"), settings=settings) as producer:
            deliveries = [await producer.send("tenant-a", key, b"%d" % n * 100) for n in range(120)]
            return [(await delivery).offset for delivery in deliveries]

    began = asyncio.get_running_loop().time()
    first, second = await asyncio.gather(produce(b"1"), produce(b"2"))
    seconds = asyncio.get_running_loop().time() - began

    assert (sorted(first), sorted(second)) == (first, second)
    assert list(range(240)) == sorted(first + second)
    assert seconds > 240 / 40 - 3, "what a burst and a delay allow"
    rows = [row for row in await cluster.record_rows() if row["key"] in (b"1", b"2")]
    assert 240 == len({(row["key"], row["value"]) for row in rows}) == len(rows)
    assert await metric(address, "headgate_replies_delayed_total") > 0
    assert await metric(address, "headgate_quota_exceeded_total", quota="requests_per_second") > 0
    assert 1 == await metric(address, "headgate_quota_exceeded_total", quota="topics")
    logged = cluster.daemons["only"].log_entries("quota.exceeded")
    assert len(logged) <= 3, "one line per client and minute"


async def test_a_higher_quota_needs_no_restart(cluster: SecuredTestCluster) -> None:
    (cluster.folder / "access.toml").write_text(ACCESS.replace("topics = 1\n", "topics = 2\n"))
    cluster.daemons["only"].process.send_signal(signal.SIGHUP)

    async def created() -> bool:
        try:
            await tenant.create_topic("tenant-b", 1)
        except RequestRejectedError:
            return False
        return True

    async with Admin(cluster.config_of("tenant")) as tenant:
        await wait_until(created, lambda: "the daemon has read the access file", 30)


@pytest.mark.nightly
async def test_the_users_that_a_node_creates_do_their_work_with_the_broker_amqtt(tmp_path: Path) -> None:
    """mosquitto is not installed everywhere; all other tests of users run on it."""
    async with Cluster(tmp_path, shards=1, broker_kind="amqtt", tls=True) as cluster:
        await cluster.start_leader()
        async with Admin(cluster.client_config()) as admin:
            await admin.create_topic("orders", 1)
        async with Producer(cluster.client_config(user="producer")) as producer:
            await producer.send_and_wait("orders", b"key", b"1")
        options = {"topic": "orders", "subscription": "billing", "start": "earliest"}
        async with Consumer(cluster.client_config(user="consumer"), **options) as consumer, asyncio.timeout(60):
            assert (await anext(consumer)).value == b"1"
        async with Admin(cluster.client_config(user="observer")) as admin:
            with pytest.raises(RequestRejectedError, match="user observer may not administer topic orders"):
                await admin.delete_topic("orders", force=True)


async def test_an_action_over_http_is_judged_as_a_command_of_the_token_s_user(cluster: SecuredTestCluster) -> None:
    daemon = cluster.daemons["only"]
    address, tokens = daemon.http_address, Path(daemon.settings.http.tokens_file or "")
    lines = "".join(f"{token_line(user, user)}\n" for user in ("operator", "grafana"))
    await asyncio.to_thread(lambda: tokens.write_text(tokens.read_text() + lines))
    reloads = len(daemon.log_entries("settings.reloaded"))
    daemon.process.send_signal(signal.SIGHUP)
    await wait_until(lambda: len(daemon.log_entries("settings.reloaded")) > reloads, "the tokens are read")

    async def ask(user: str, path: str, **given: object) -> tuple[int, Any]:
        url = f"http{'' if address.ca_file is None else 's'}://{address}/api/v1/{path}"
        context = True if address.ca_file is None else ssl.create_default_context(cafile=address.ca_file)
        options = {"headers": {"Authorization": f"Bearer {user}"}, "ssl": context}
        async with (
            aiohttp.ClientSession() as session,
            session.request("POST" if given else "GET", url, json=given or None, **options) as response,
        ):
            return response.status, await response.json()

    status, answer = await ask("grafana", "actions/split", topic="orders", segment=0)
    assert (status, "user grafana may not administer topic orders" in answer["error"]) == (403, True)
    assert (await ask("operator", "actions/split", topic="orders", segment=0))[0] == 200
    (entry,) = (each for each in daemon.log_entries("http.action") if each["outcome"] == "done")
    assert (entry["user"], entry["action"]) == ("operator", "split")

    found: dict[str, Any] = {}
    jobs, listed = {"topic": "orders", "subscription": "jobs"}, "topics/orders/subscriptions/jobs/dead-letters"
    async with Admin(cluster.config_of("operator")) as admin, Producer(cluster.config_of("operator")) as producer:
        await admin.create_topic("dead", 1)
        await admin.create_subscription(**jobs, type="QUEUE")
        await admin.set_delivery_policy(*jobs.values(), max_deliveries=1, dead_letter_topic="dead")
        await producer.send_and_wait("orders", b"poison", b"1")
    async with Consumer(cluster.config_of("operator"), **jobs, type="QUEUE") as consumer, asyncio.timeout(60):
        await consumer.negative_acknowledge(await anext(consumer), reason="no order")

        async def died() -> bool:
            found.update((await ask("operator", listed))[1])
            return bool(found["letters"])

        await wait_until(died, lambda: f"the record is a dead letter: {found}")
    assert (await ask("grafana", listed))[0] == 403
    assert [(each["key"]["text"], each["origin"]["reason"]) for each in found["letters"]] == [("poison", "no order")]
    for number in (1, 0):
        _, answer = await ask("operator", "actions/replay-dead-letters", **jobs, through=found["through"])
        assert answer["changes"] == [f"{number} dead letters are sent back to orders"]
    assert (await ask("operator", listed))[1]["letters"] == []
    async with Consumer(cluster.config_of("operator"), **jobs, type="QUEUE") as consumer, asyncio.timeout(60):
        assert (await anext(consumer)).key == b"poison"
