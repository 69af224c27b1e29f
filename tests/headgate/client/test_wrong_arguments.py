"""Arguments of another type are refused where they enter, with what is wrong. A leader could only refuse the request."""

import inspect
from typing import Any

import pytest

from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, InvalidNameError
from headgate.protocol.request_fields import failure_text
from tests.support.worlds.one_shard_programs import client, orders

pytestmark = pytest.mark.looptime

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


@pytest.mark.parametrize(("method", "wrong"), CASES, ids=map("-".join, CASES))
async def test_an_administrator_learns_which_value_is_wrong(method: str, wrong: str) -> None:
    required = [each for each in METHODS[method] if each.default is each.empty]
    given = {each.name: VALID.get(each.name, "orders" if each.annotation is str else 0) for each in required}
    if method == "seek" and wrong in ("topic", "subscription", "point", "topic_id"):
        given["to"] = "latest"
    values = (5, [WRONG]) if wrong in COLLECTIONS else (WRONG,)
    async with orders() as (_, admin):
        for value in values:
            with pytest.raises((ConfigError, InvalidNameError), match=repr(value).strip("[]")):
                await getattr(admin, method)(**given | {wrong: value})


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
