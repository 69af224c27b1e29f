"""Arguments of another type are refused where they enter, with what is wrong. A leader could only refuse the request."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.consuming.consumer_context import host_name, library_version, program_text
from headgate.client.producer import Producer
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, InvalidNameError, RequestRejectedError
from headgate.protocol.request_fields import ProgramText, failure_text
from shard.access.rules import AccessRules, Right, Role
from tests.support.worlds.one_shard_programs import client, orders

WRONG = "!wrong"
COLLECTIONS = ("positions", "reset", "splits", "merges", "add_consumers", "remove_consumers")
VALID: dict[str, Any] = {"key": b"k", "order": "strict", "layout": ExternalLayout([]), "shards": 2}
"""Of what is required; other texts are "orders", and other numbers 0."""
METHODS = {
    name: list(inspect.signature(method).parameters.values())[1:]
    for name, method in inspect.getmembers(Admin, inspect.iscoroutinefunction)
    if not name.startswith("_") and ":meta private:" not in method.__doc__
}
CASES = [
    (name, parameter.name)
    for name, parameters in METHODS.items()
    for parameter in parameters
    if parameter.annotation not in ("bool", bool)
]


async def refusal(admin: Admin, method: str, wrong: str, value: object) -> str:
    """Return what a caller learns that gives ``value`` for the parameter ``wrong``, and valid ones otherwise."""
    required = [each for each in METHODS[method] if each.default is each.empty]
    given = {each.name: VALID.get(each.name, "orders" if each.annotation is str else 0) for each in required}
    if method == "seek" and wrong in ("topic", "subscription", "point", "topic_id"):
        given["to"] = "latest"
    try:
        await getattr(admin, method)(**given | {wrong: value})
    except (ConfigError, InvalidNameError) as error:
        return str(error)
    return "it is accepted"


async def test_an_administrator_learns_which_value_is_wrong() -> None:
    async with orders() as (_, admin):
        learned = {
            (method, wrong, repr(value).strip("[]")): await refusal(admin, method, wrong, value)
            for method, wrong in CASES
            for value in ((5, [WRONG]) if wrong in COLLECTIONS else (WRONG,))
        }

    assert len(learned) > 70
    assert {} == {case: text for case, text in learned.items() if case[-1] not in text}


@pytest.mark.parametrize("reason", [b"bytes", ["list"]], ids=["bytes", "list"])
async def test_a_failure_whose_reason_no_leader_could_read_is_refused_and_others_are_stored(reason: Any) -> None:
    async with (
        orders(segments=1, records=2) as (world, _),
        Consumer(client(world, "c"), topic="orders", subscription="s", type="QUEUE", start="earliest") as consumer,
    ):
        first = await anext(consumer)
        with pytest.raises(ConfigError, match=r"reason=.*has to be a str"):
            await consumer.negative_acknowledge(first, reason=reason)
        await consumer.negative_acknowledge(first, reason="not UTF-8: \udcff")
        await consumer.flush()
    assert failure_text("\udcff") == "?"


# What a program says about itself keeps to the protocol.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reader-1.example.org", "reader-1.example.org"),
        ("rechner schön", "rechner?sch?n"),
        ("\x1b[31mred", "?[31mred"),
        ("h" * 200, "h" * 128),
        ("", ""),
    ],
    ids=["a host", "letters", "an escape sequence", "long", "empty"],
)
def test_a_text_is_printable_and_bounded(text: str, said: str) -> None:
    assert program_text(text) == said
    assert msgspec.convert(program_text(text), ProgramText) == said


def test_this_program_has_a_host_and_a_version() -> None:
    assert host_name()
    assert library_version()[0].isdigit()


# A name that does not exist is answered with those that do, wherever it is used and as far as the user may see them.


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
