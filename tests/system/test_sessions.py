"""Consumer sessions and their races, on a real broker and real daemons, with minimal clients.

tests/coordinator tests the decisions in virtual time. These tests cover wills, wall clocks, retained messages and other
processes. Each test has its own topic. The heartbeat interval is 5 s, so missing heartbeats are noticed after 15 s:
everything noticed earlier was reported by the broker.
"""

import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Self

import pytest
import pytest_asyncio

from bench.harness.tcp_proxy import Proxy
from controller.settings.sections import ClusterSettings, LogSettings, ScalingSettings, SubscriptionSettings
from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.errors import FencedError
from headgate.model.layout import shard_of
from headgate.protocol import codec
from headgate.protocol.codec import Presence, presence_topic
from headgate.protocol.replies import AssignmentChanged, ConsumerFenced, Grant, Push, Revocation
from headgate.protocol.request_fields import RequestBody
from headgate.protocol.requests import ConfirmRevoked, Heartbeat, LeaveConsumer, RegisterConsumer
from headgate.views.subscriptions import SubscriptionInfo
from tests.support.servers.cluster import SHARDS, Cluster
from tests.support.servers.programs import TEST_SECONDS, TIMEOUT_FACTOR, wait_until
from tests.support.servers.raw_clients import raw_client

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(TEST_SECONDS)]

HEARTBEAT_SECONDS, GRACE_SECONDS, REVOKE_SECONDS = 5.0, 15.0, 3.0
SUBSCRIPTIONS = SubscriptionSettings(
    heartbeat_interval_seconds=HEARTBEAT_SECONDS, grace_seconds=GRACE_SECONDS, revoke_timeout_seconds=REVOKE_SECONDS
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A daemon that leads every shard."""
    async with Cluster(tmp_path_factory.mktemp("sessions"), subscriptions=SUBSCRIPTIONS) as made:
        await made.start_leader("one")
        yield made


class Program:
    """A consumer program that sends only the test's requests; its connection can be cut."""

    def __init__(self, cluster: Cluster, topic: str, name: str, incarnation: int = 1) -> None:
        self.cluster, self.topic, self.name, self.incarnation = cluster, topic, name, incarnation
        self.client_id = f"raw-{uuid.uuid4().hex[:8]}"
        self.shard = shard_of(topic, SHARDS)
        self.held: dict[int, Grant] = {}
        self.revoked: list[Revocation] = []
        self.fenced: list[str] = []
        self.proxy = Proxy("127.0.0.1", cluster.broker.port)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.proxy)
        self.client = raw_client(self.cluster.client_config(self.proxy.port), self.client_id)
        await self._stack.enter_async_context(self.client)
        self.client.replies.expect_pushes((self.topic, "s", self.name, self.incarnation), self._on_push)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _on_push(self, push: Push) -> None:
        if isinstance(push, ConsumerFenced):
            self.fenced.append(push.reason)
        elif isinstance(push, AssignmentChanged):
            self.held |= {grant.segment: grant for grant in push.granted}
            for revocation in push.revoked:
                self.revoked.append(revocation)
                if revocation.final:
                    self.held.pop(revocation.segment, None)

    async def ask(self, kind: type[RequestBody], **fields: Any) -> Any:
        """Return the leader's reply to one request of this consumer."""
        body = kind(topic=self.topic, subscription="s", consumer=self.name, incarnation=self.incarnation, **fields)
        return (await self.client.request(self.shard, body, 20 * TIMEOUT_FACTOR)).body

    async def register(self) -> dict[int, int]:
        """Register; return segment → generation of the grants."""
        answer = await self.ask(RegisterConsumer, subscription_type="STREAM", start="earliest")
        self.held = {grant.segment: grant for grant in answer.grants}
        return self.generations

    @property
    def generations(self) -> dict[int, int]:
        """Segment → generation of its grants."""
        return {segment: grant.generation for segment, grant in sorted(self.held.items())}

    async def confirm(self) -> None:
        """Confirm every revocation received so far."""
        for revocation in self.revoked:
            self.held.pop(revocation.segment, None)
            await self.ask(ConfirmRevoked, released=[(revocation.segment, revocation.generation)])


async def new_topic(cluster: Cluster, segments: int = 2) -> str:
    """Create a topic; return its name."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    async with Admin(cluster.client_config()) as admin:
        await admin.create_topic(name, segments=segments)
    return name


async def described(cluster: Cluster, topic: str) -> SubscriptionInfo:
    """Return the leader's description of the topic's subscription."""
    async with Admin(cluster.client_config()) as admin:
        return await admin.describe_subscription(topic, "s")


async def until_connected(cluster: Cluster, topic: str, name: str, connected: bool, seconds: float) -> None:
    """Wait until the leader reports ``name`` as connected, or as disconnected."""

    async def seen() -> bool:
        consumers = {each.consumer: each.connected for each in (await described(cluster, topic)).consumers}
        return consumers.get(name) is connected

    await wait_until(seen, f"{name} connected: {connected}", seconds)


async def test_the_will_reports_a_disconnect_and_a_reconnect_in_time_moves_nothing(cluster: Cluster) -> None:
    topic = await new_topic(cluster)
    async with Program(cluster, topic, "ada") as ada, Program(cluster, topic, "bob") as bob:
        await ada.register()
        await bob.register()
        await wait_until(lambda: ada.revoked, "the first consumer gets a revocation")
        await ada.confirm()
        await wait_until(lambda: bob.held, "the second consumer gets the released segment")
        ada.revoked.clear()
        before = ada.generations, bob.generations
        await ada.ask(Heartbeat)
        await ada.proxy.cut()
        # Missing heartbeats would be noticed only after three intervals.
        await until_connected(cluster, topic, "ada", connected=False, seconds=HEARTBEAT_SECONDS / 2)
        await ada.proxy.heal()
        assert before[0] == await ada.register(), "the same generations"
        await until_connected(cluster, topic, "ada", connected=True, seconds=5)
        assert before == (ada.generations, bob.generations)
        assert [] == bob.revoked


async def test_a_newer_consumer_of_the_same_name_fences_the_older_one(cluster: Cluster) -> None:
    topic = await new_topic(cluster)
    async with Program(cluster, topic, "ada", 1) as old, Program(cluster, topic, "ada", 2) as new:
        await old.register()
        assert [0, 1] == list(await new.register())
        await wait_until(lambda: old.fenced, "the older consumer is fenced")
        assert "incarnation 2" in old.fenced[0]
        for kind in (Heartbeat, RegisterConsumer):
            fields = {"subscription_type": "STREAM"} if kind is RegisterConsumer else {}
            with pytest.raises(FencedError, match="incarnation 2"):
                await old.ask(kind, **fields)
        before = new.generations
        await old.ask(LeaveConsumer)
        async with raw_client(cluster.daemon_client_config(), "observer") as observer:
            wills: list[Presence] = []
            topic_of_presence = presence_topic(cluster.name, old.client.address)
            await observer.transport.subscribe(
                topic_of_presence, lambda topic, payload: wills.append(codec.read_presence(topic, payload))
            )
            await observer.shard_map()
            await old.proxy.cut()
            await wait_until(
                lambda: any(not each.online for each in wills), "the will of the older consumer is published"
            )
        consumers = (await described(cluster, topic)).consumers
        assert [("ada", 2, True, (0, 1))] == [(c.consumer, c.incarnation, c.connected, c.segments) for c in consumers]
        assert before == await new.register()


async def test_a_consumer_that_is_cut_off_delivers_nothing_that_another_one_may_have(cluster: Cluster) -> None:
    topic = await new_topic(cluster, segments=1)
    options: dict[str, Any] = {"topic": topic, "subscription": "s", "start": "earliest"}
    async with Producer(cluster.client_config()) as producer:
        for n in range(100):
            await producer.send(topic, b"key", b"%d" % n)
    async with Proxy("127.0.0.1", cluster.broker.port) as proxy, AsyncExitStack() as stack:
        ada = await stack.enter_async_context(Consumer(cluster.client_config(proxy.port), name="ada", **options))
        assert [b"0"] == [each.value for each in await ada.get_many(1, 20)]
        await proxy.blackhole()
        async with Consumer(cluster.client_config(), name="bob", **options) as bob:
            assert await bob.get_many(10, 60 * TIMEOUT_FACTOR), "the segments of the other one were moved"
            assert [] == await ada.get_many(10), "its queue has records, and its lease has ended"
        await proxy.heal()
        assert [b"0"] == [each.value for each in await ada.get_many(1, 60)], "registered again, it begins again"


async def test_a_reload_applies_some_settings_names_those_that_need_a_restart_and_refuses_mistakes(cluster: Cluster):
    """SIGHUP, without a new leader term. The last test, because the file has a mistake then."""
    daemon, leads = cluster.daemons["one"], await cluster.daemons["one"].leads()
    other, log = ClusterSettings(name=cluster.name, shards=3), LogSettings(format="text")
    cluster.reload(daemon.settings.replace(cluster=other, log=log, scaling=ScalingSettings(max_segments=9)))
    await wait_until(lambda: daemon.log_entries("log.format"), "the log names what needs a restart")
    (cluster.folder / "one.toml").write_text("[ingest]\nqueue_bites = true\n")
    daemon.process.send_signal(signal.SIGHUP)
    await wait_until(lambda: daemon.log_entries("settings.invalid"), "the log names the error")
    assert leads == await daemon.leads() == SHARDS
    assert "queue_bites" in daemon.log_entries("settings.invalid")[0]["error"]
    assert ["cluster.shards", "log.format"] == [
        each["setting"] for each in daemon.log_entries("settings.needs_restart")
    ]
    assert ["scaling.max_segments"] == daemon.log_entries("settings.reloaded")[-1]["applied"]
