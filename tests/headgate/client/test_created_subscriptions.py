"""Subscriptions that exist before their first consumer: real Producer, Consumer, Admin and leader, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from controller.settings.sections import RetentionSettings
from headgate.client.admin import Admin, Seen
from headgate.client.consumer import Consumer
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, RequestRejectedError
from headgate.model.entries import SubscriptionType, TopicPolicy
from headgate.protocol.requests import SegmentImport
from headgate.reading.topic_files import positions_at
from tests.support.waiting import until
from tests.support.worlds.one_shard import now_ms
from tests.support.worlds.one_shard_programs import client, orders, produce

pytestmark = pytest.mark.looptime


async def test_it_starts_at_a_point_in_time():
    async with orders(segments=1, records=30) as (world, admin):
        await asyncio.sleep(5)
        moment = now_ms()
        await produce(world, 20, "second")
        created = await admin.create_subscription("orders", "audit", timestamp_ms=moment)
        assert [(30, 50, 20)] == [
            (each.acknowledged_offset, each.next_offset, each.unacknowledged) for each in created.segments
        ]
        for wrong in (datetime.fromtimestamp(moment / 1000, UTC), str(moment), True, 1.5):
            with pytest.raises(ConfigError, match=r"timestamp_ms=.* has to be an integer, in milliseconds"):
                await admin.seek("orders", "audit", timestamp_ms=wrong)
        with pytest.raises(ConfigError, match="is in the future"):
            await admin.create_subscription("orders", "other", timestamp_ms=now_ms() + 1000)


async def test_a_time_is_looked_up_again_if_a_segment_was_pruned_meanwhile(monkeypatch: pytest.MonkeyPatch):
    async with orders(segments=1, records=30, retention=RetentionSettings(checkpoint_retention_seconds=0)) as (
        _world,
        admin,
    ):
        moment, lookups = now_ms(), []

        async def pruned_after(*args):
            lookups.append(found := await positions_at(*args))
            if len(lookups) <= prunings:
                await admin.split("orders", max(found))
                await admin.prune_topic("orders")
            return found

        monkeypatch.setattr("headgate.client.admin.positions_at", pruned_after)
        prunings = 2
        created = await admin.create_subscription("orders", "audit", timestamp_ms=moment)
        assert [{0}, {1, 2}, {1, 3, 4}] == [set(each) for each in lookups]
        assert [1, 3, 4] == [each.segment for each in created.segments]
        prunings = 99
        with pytest.raises(RequestRejectedError, match="there is no segment"):
            await admin.seek("orders", "audit", timestamp_ms=moment)
        assert len(lookups) == 6


async def test_a_time_in_a_topic_that_is_created_again_meanwhile_moves_no_subscription_of_the_new_one(monkeypatch):
    """Its positions would skip records there."""
    async with orders(segments=1, records=30) as (world, admin):
        await admin.create_subscription("orders", "audit", start="earliest")

        async def created_again_after(*args):
            found = await positions_at(*args)
            await admin.delete_topic("orders")
            await admin.create_topic("orders")
            await produce(world, 30)
            await admin.create_subscription("orders", "audit", start="earliest")
            return found

        await asyncio.sleep(5)
        monkeypatch.setattr("headgate.client.admin.positions_at", created_again_after)
        for change, name in ((admin.seek, "audit"), (admin.create_subscription, "other")):
            with pytest.raises(RequestRejectedError, match="'orders' was deleted and created again: it has id"):
                await change("orders", name, timestamp_ms=now_ms())
        assert [0] == [
            each.acknowledged_offset for each in (await admin.describe_subscription("orders", "audit")).segments
        ]
        with pytest.raises(RequestRejectedError, match="and the request is for id 1"):
            await admin.create_subscription("orders", "export", topic_id=1)


async def test_a_late_copy_of_a_deletion_deletes_no_topic_that_was_created_since_however_many_commands_followed():
    async with orders() as (world, admin), Admin(client(world, "other")) as other:
        await admin.create_topic("busy")
        await admin.create_subscription("busy", "export", type="QUEUE")
        deletion = asyncio.create_task(other.delete_topic("orders"))
        await until(lambda: "orders" not in world.led.state.topics)
        world.broker.cut("other")  # Its reply is lost, and it repeats the command.
        assert not deletion.done()
        for _ in range(10):
            await asyncio.gather(*(admin.seek("busy", "export", to="latest") for _ in range(100)))
        await admin.create_topic("orders")
        world.broker.heal("other")
        await deletion
        assert ["busy", "orders"] == [each.topic for each in await admin.list_topics()]


LISTING = ExternalLayout(segments=[SegmentImport(segment="a")])
CHANGES: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "split": lambda admin: admin.split("orders", 0),
    "merge": lambda admin: admin.merge("orders", 0, 1),
    "policy": lambda admin: admin.set_topic_policy("orders", TopicPolicy(max_segments=4)),
    "prune": lambda admin: admin.prune_topic("orders"),
    "delete": lambda admin: admin.delete_topic("orders", force=True),
    "import": lambda admin: admin.import_topic("orders", LISTING),
    "create subscription": lambda admin: admin.create_subscription("orders", "other"),
    "delete subscription": lambda admin: admin.delete_subscription("orders", "audit", force=True),
    "evict": lambda admin: admin.evict_consumer("orders", "audit", "c"),
    "seek": lambda admin: admin.seek("orders", "audit", to="latest"),
    "seek to a time": lambda admin: admin.seek("orders", "audit", timestamp_ms=now_ms()),
    "order": lambda admin: admin.set_order("orders", "audit", "none"),
    "delivery policy": lambda admin: admin.set_delivery_policy("orders", "audit", max_processing_seconds=60),
    "resume": lambda admin: admin.resume_key("orders", "audit", b"k"),
}
"""Every command about what exists."""


async def test_a_command_about_what_was_seen_changes_no_other_topic_subscription_or_program_of_the_name():
    """Whatever is created, or started, again under the name between."""
    reader = {"topic": "orders", "subscription": "audit", "name": "c"}

    async def state(admin: Admin) -> tuple[object, ...]:
        found = await admin.describe_subscription("orders", "audit")
        names = [each.consumer for each in found.consumers]
        return await admin.describe_topic("orders"), found.seek_generation, found.order, found.policy, names

    async def refused(admin: Admin, seen: Seen, names: Collection[str], text: str) -> None:
        before = await state(admin)
        for name in names:
            with pytest.raises(RequestRejectedError, match=text):
                await CHANGES[name](admin.bound_to(seen))
        assert before == await state(admin)

    async with orders(segments=2) as (world, admin):
        await admin.create_subscription("orders", "audit")
        absent = await admin.seen("orders", "audit", "c")
        async with Consumer(client(world, "1"), **reader):
            await refused(admin, absent, ["evict"], "and the request is for incarnation 0")
            first = await admin.seen("orders", "audit", "c")
        async with Consumer(client(world, "2"), **reader):
            started = rf"was started again: it has incarnation \d+, and the request is for incarnation {first[-1]}"
            await refused(admin, first, ["evict"], started)
        await admin.delete_subscription("orders", "audit", force=True)
        await admin.create_subscription("orders", "audit")
        again = r"'{}' .*was deleted and created again: it has id \d+, and the request is for id {}"
        of_subscription = [*CHANGES][7:]
        await refused(admin, first, of_subscription, again.format("audit", first.subscription_id))
        await admin.delete_topic("orders", force=True)
        await admin.create_topic("orders", 2)
        await admin.create_subscription("orders", "audit")
        await refused(admin, first, CHANGES, again.format("orders", first.topic_id))
        present = admin.bound_to(await admin.seen("orders", "audit"))
        await present.split("orders", 0)
        await present.seek("orders", "audit", to="earliest")
        await present.delete_topic("orders")


async def test_its_type_is_that_of_its_consumers():
    async with orders(segments=1) as (world, admin):
        await admin.create_subscription("orders", "audit", type="queue")
        with pytest.raises(RequestRejectedError, match="is of type QUEUE; register as QUEUE"):
            async with Consumer(client(world, "client-c"), topic="orders", subscription="audit", name="c"):
                pass
        with pytest.raises(RequestRejectedError, match="exists"):
            await admin.create_subscription("orders", "audit", type="queue")
        again = await admin.create_subscription("orders", "audit", type="QUEUE", if_absent=True)
        assert again == replace(await admin.describe_subscription("orders", "audit"), point=None)


@pytest.mark.parametrize("kind", SubscriptionType)
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("records", [0, 10], ids=["empty", "with records"])
async def test_the_reply_is_what_a_description_says_right_after(kind: SubscriptionType, start, records: int):
    """At the end of a sealed segment nothing has to be counted: its children are open from the start."""
    async with orders(segments=1, records=records) as (_, admin):
        await admin.split("orders", 0)
        created = await admin.create_subscription("orders", "audit", type=kind, start=start)
        assert created == replace(await admin.describe_subscription("orders", "audit"), point=None)
        await asyncio.sleep(30)
        assert created == replace(await admin.describe_subscription("orders", "audit"), point=None)
        if kind != SubscriptionType.CHECKPOINT:
            await admin.seek("orders", "audit", to="latest")
            moved = await admin.describe_subscription("orders", "audit")
            assert ["drained", "waiting", "waiting"] == [each.status for each in moved.segments]
        waits = (kind, start, records > 0) == (SubscriptionType.STREAM, "earliest", True)
        assert ["blocked" if waits else "waiting"] * 2 == [each.status for each in created.segments[1:]]


async def test_it_can_be_created_again_after_its_deletion_and_is_another_one():
    async with orders(segments=1) as (_, admin):
        first = await admin.create_subscription("orders", "billing")
        await admin.delete_subscription("orders", "billing", force=False)
        second = await admin.create_subscription("orders", "billing")
        assert first.subscription_id != second.subscription_id
