"""A name that does not exist is answered with those that do, wherever it is used and as far as the user may see them."""

from collections.abc import Awaitable, Callable

import pytest

from headgate.client.admin import Admin
from headgate.client.producer import Producer
from headgate.errors import RequestRejectedError
from shard.access.rules import AccessRules, Right, Role
from tests.support.worlds.one_shard_programs import client, orders

pytestmark = pytest.mark.looptime

Question = Callable[[Admin], Awaitable[object]]

OF_TOPICS: dict[str, Question] = {
    "describe": lambda admin: admin.describe_topic("ordres"),
    "split": lambda admin: admin.split("ordres", 0),
    "backlog": lambda admin: admin.backlog("ordres"),
    "list subscriptions": lambda admin: admin.list_subscriptions("ordres"),
    "create subscription": lambda admin: admin.create_subscription("ordres", "billing"),
    "describe subscription": lambda admin: admin.describe_subscription("ordres", "billing"),
}
OF_SUBSCRIPTIONS: dict[str, Question] = {
    "describe": lambda admin: admin.describe_subscription("orders", "biling"),
    "explain": lambda admin: admin.explain("orders", "biling"),
    "seek": lambda admin: admin.seek("orders", "biling", to="earliest"),
    "delete": lambda admin: admin.delete_subscription("orders", "biling"),
    "backlog": lambda admin: admin.backlog("orders", "biling"),
}


@pytest.mark.parametrize("question", OF_TOPICS.values(), ids=OF_TOPICS.keys())
async def test_the_near_topics_are_named(question: Question) -> None:
    async with orders() as (_, admin):
        with pytest.raises(RequestRejectedError, match=r"^topic 'ordres' does not exist; did you mean 'orders'\?$"):
            await question(admin)


@pytest.mark.parametrize("question", OF_SUBSCRIPTIONS.values(), ids=OF_SUBSCRIPTIONS.keys())
async def test_the_near_subscriptions_are_named(question: Question) -> None:
    async with orders() as (_, admin):
        with pytest.raises(RequestRejectedError, match="has no subscription 'biling'; it has none: a consumer creates"):
            await question(admin)
        await admin.create_subscription("orders", "billing")
        with pytest.raises(RequestRejectedError, match=r"has no subscription 'biling'; did you mean 'billing'\?$"):
            await question(admin)


@pytest.mark.parametrize("name", [None, "loader"])
async def test_a_producer_names_the_near_topics(name: str | None) -> None:
    async with orders() as (world, _), Producer(client(world, "producer"), name) as producer:
        with pytest.raises(RequestRejectedError, match=r"^topic 'ordres' does not exist; did you mean 'orders'\?$"):
            await (producer.send_and_wait("ordres", b"k", b"") if name is None else producer.open("ordres"))


async def test_another_mistake_keeps_its_own_words() -> None:
    async with orders() as (_, admin):
        with pytest.raises(RequestRejectedError, match="exists"):
            await admin.create_topic("orders")
        with pytest.raises(RequestRejectedError, match="active segments are"):
            await admin.split("orders", 99)


async def test_a_user_who_may_not_list_the_topics_learns_none() -> None:
    async with orders() as (world, _):
        world.access.rules = AccessRules({"eve": (Right(Role.CONSUMER, ("ord*",)),)})
        async with Admin(client(world, "eve", "eve")) as eve:
            with pytest.raises(RequestRejectedError, match=r"^there is no topic 'ordres'$"):
                await eve.describe_topic("ordres")
