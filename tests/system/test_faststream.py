"""The FastStream broker: handlers on its test broker, and acknowledgements on a real cluster."""

import asyncio
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from faststream import AckPolicy
from faststream.exceptions import RejectMessage
from faststream.specification import AsyncAPI
from headgate_faststream import (
    HeadgateBroker,
    HeadgateMessage,
    HeadgateResponse,
    HeadgateRouter,
    TestHeadgateBroker,
    subscriber,
)
from headgate_faststream.messages import Delivery, parse_message
from pydantic import BaseModel, ValidationError

from headgate import Admin, ConsumedRecord, RetryPolicy, load_client_config
from headgate.errors import ConfigError, RequestRejectedError
from headgate.model.headers import Origin
from headgate.model.identifiers import Generation, Offset, SegmentId
from tests.support.servers.node import Node
from tests.support.servers.programs import wait_until


class Order(BaseModel):
    customer: str
    total: int


def chain(seen: list[Any]) -> HeadgateBroker:
    broker, router = HeadgateBroker(), HeadgateRouter("shop-")

    @broker.publisher("bills", headers={"from": "bill"})
    @broker.subscriber("orders", subscription="billing", max_workers=4)
    async def bill(order: Order) -> Order:
        return Order(customer=order.customer, total=order.total + 1)

    @router.publisher("mails")
    @broker.subscriber("bills", subscription="mail", title="Mail", description="Sends mails.")
    async def mail(order: Order, message: HeadgateMessage) -> Any:
        seen.append((order.total, message.record.key, message.headers["from"], message.correlation_id))
        return HeadgateResponse(b"\xff", key="another")

    @router.subscriber("mails", subscription="archive", type="QUEUE")
    async def archive(body: bytes, message: HeadgateMessage) -> None:
        seen.append((body, message.record.key, message.correlation_id))

    broker.include_router(router)
    return broker


@pytest.mark.real_time
async def test_models_headers_keys_and_correlation_ids_go_from_handler_to_handler() -> None:
    seen: list[Any] = []
    async with TestHeadgateBroker(chain(seen)) as broker:
        stored = await broker.publish(
            Order(customer="a", total=1), "orders", key=b"c-1", headers={"shop": "x"}, correlation_id="id-1"
        )
        with pytest.raises(ValidationError):
            await broker.publish({"customer": "b"}, "orders", key="c-2")
        with pytest.raises(RequestRejectedError, match="the key is empty"):
            await broker.publish(Order(customer="", total=1), "orders", key="")

    assert (0, 0) == (stored.segment, stored.offset)
    assert [(2, b"c-1", "bill", "id-1"), (b"\xff", b"another", "id-1")] == seen


async def test_the_id_of_a_message_names_its_record() -> None:
    """Also if its topic is created again, or it was parked, where a program remembers what it has handled."""
    stored = ConsumedRecord("orders", SegmentId(0), Offset(3), b"k", b"v", 0, Generation(1))
    of = {"subscription": "s", "subscription_id": 2, "deliveries": 1, "reason": "", "died_at_ms": 0, "parked_number": 1}
    origins = [Origin(ledger="l", topic="orders", topic_id=1, segment=0, offset=at, **of) for at in (7, 8)]
    # The dead-letter topic has a segment for each of these, in which it is number 3.
    parked = [msgspec.structs.replace(stored, parked_number=1, headers=each.headers()) for each in origins]
    deliveries = Delivery(stored, 1), Delivery(stored, 3), *(Delivery(each, 1) for each in parked)
    found = [(await parse_message(each)).message_id for each in deliveries]
    assert ["orders/1/0/3", "orders/3/0/3", "orders/1/0/7/parked", "orders/1/0/8/parked"] == found


def test_the_asyncapi_document_has_every_channel_with_its_payload() -> None:
    document = AsyncAPI(chain([]), schema_version="3.0.0").to_specification().to_jsonable()

    assert "headgate" == document["servers"]["development"]["protocol"]
    assert {"orders:Bill", "bills:Publisher", "Mail", "shop-mails:Publisher", "shop-mails:Archive"} == set(
        document["channels"]
    )
    assert "Order" in document["components"]["schemas"]
    assert "Sends mails." == document["channels"]["Mail"]["description"]


def test_a_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"use headgate\.Consumer"):
        HeadgateBroker().subscriber("orders", subscription="export", type="CHECKPOINT")


async def test_a_subscriber_that_has_stopped_begins_and_refuses_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a key would be parked, or a record of a QUEUE be dead, because the program ends."""
    consumer = MagicMock()
    monkeypatch.setattr(subscriber, "Consumer", consumer)
    stopped = HeadgateBroker().subscriber("orders", subscription="billing")
    await stopped.stop()

    await asyncio.wait_for(stopped._run(), 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stopped._handle(MagicMock()), 0.1)

    assert not consumer.return_value.__aenter__.return_value.run.called


@pytest.mark.system
@pytest.mark.asyncio(loop_scope="session")
async def test_what_handlers_decide_becomes_the_outcome_of_records(node: Node) -> None:
    broker = HeadgateBroker(node.config)
    calls: list[tuple[str, str, int]] = []

    def handler(name: str, **options: Any) -> None:
        @broker.subscriber("fs-orders", subscription=name, start="earliest", **options)
        async def handle(body: str, message: HeadgateMessage) -> str:
            calls.append((name, body, message.record.delivery_count))
            if body == "once" and [call[:2] for call in calls].count((name, body)) == 1:
                raise ValueError(body)
            if body == "never":
                raise ValueError(body) if name == "lenient" else RejectMessage
            return f"{name} {body}"

    async with Admin(load_client_config(node.config)) as admin:
        for topic in ("fs-orders", "fs-replies", "fs-stream-dead", "fs-queue-dead"):
            await admin.create_topic(topic)
        for name in ("stream", "queue"):
            await admin.create_subscription("fs-orders", name, type=name, start="earliest")
        await admin.set_delivery_policy("fs-orders", "stream", dead_letter_topic="fs-stream-dead")
        await admin.set_delivery_policy("fs-orders", "queue", dead_letter_topic="fs-queue-dead", max_deliveries=2)
        handler("stream", retry=RetryPolicy(attempts=2, then="park"))
        handler("queue", type="QUEUE", max_workers=2)
        handler("lenient", ack_policy=AckPolicy.ACK)
        replies: list[tuple[str, bytes]] = []

        @broker.subscriber("fs-replies", subscription="all", start="earliest", no_reply=True)
        async def reply(body: str, message: HeadgateMessage) -> None:
            replies.append((body, message.record.key))

        await broker.start()
        try:
            assert await broker.ping()
            for key, body in (("a", "once"), ("b", "never"), ("a", "last"), ("b", "after")):
                await broker.publish(body, "fs-orders", key=key, reply_to="fs-replies")
            wanted = {"stream last", "queue last", "lenient last"}
            await wait_until(
                lambda: wanted | {"stream once", "queue once"} <= {body for body, _ in replies},
                lambda: f"{replies} {calls}",
            )

            async def dead() -> bool:
                found = [await admin.describe_topic(topic) for topic in ("fs-stream-dead", "fs-queue-dead")]
                return [2, 1] == [sum(each.next_offset for each in topic.segments) for topic in found]

            await wait_until(
                dead, "both records of the parked key, and the dead one, are in the dead-letter topics", 60
            )
        finally:
            await asyncio.wait_for(broker.stop(), 60)
        left = [await admin.describe_subscription("fs-orders", name) for name in ("stream", "queue", "lenient")]
    assert [0, 0, 0] == [segment.unacknowledged for each in left for segment in each.segments]
    assert not any(each.consumers for each in left), "every consumer has left"
    assert ("stream", "after", 1) not in calls, "a parked key waits"
    assert {("queue", "once", 2), ("queue", "after", 1)} <= set(calls)
    assert ["once", "once", "last"] == [
        body for name, body, _ in calls if name == "stream" and body in ("once", "last")
    ]
    assert ("lenient last", b"a") in replies, "a reply has the key of its record"
    assert 1 == [call[:2] for call in calls].count(("lenient", "once"))
