"""A web service with headgate alone: requests become records, and a handler works on them in the same process.

Run it beside `headgate up`, with a topic of its own, because the handler takes every record for an order:

    pip install . fastapi uvicorn
    headgate topic create web-orders
    uvicorn --app-dir examples/fastapi app:app
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from headgate import ConsumedRecord, Consumer, Producer, load_client_config

TOPIC = os.environ.get("TOPIC", "web-orders")
totals: dict[str, int] = {}


class Order(BaseModel):
    """What a request has."""

    customer: str = Field(min_length=1)  # a key is never empty
    total: int


async def add(record: ConsumedRecord) -> None:
    """Add an order to its customer's total. The orders of a customer arrive one by one, in order."""
    order = Order.model_validate_json(record.value)
    totals[order.customer] = totals.get(order.customer, 0) + order.total


def end_service(task: asyncio.Task[object]) -> None:
    """End the service if its consumer has failed: a supervisor starts it again, and nothing works half."""
    if not task.cancelled() and task.exception() is not None:
        signal.raise_signal(signal.SIGTERM)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Produce and consume while the server runs.

    At its end, no further record is begun, handlers at work finish, and what they have handled is acknowledged. The
    consumer leaves, so that others get its segments at once, and the producer waits until everything is durable.
    """
    config = load_client_config()
    async with (
        Producer(config) as app.state.producer,
        Consumer(config, topic=TOPIC, subscription="totals", start="earliest") as consumer,
    ):
        running = asyncio.create_task(consumer.run(add, concurrency=16))
        running.add_done_callback(end_service)
        yield
        consumer.stop()
        await running


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create(order: Order, request: Request) -> dict[str, int | None]:
    """Store an order; the answer comes when it is durable."""
    key, value = order.customer.encode(), order.model_dump_json().encode()
    stored = await request.app.state.producer.send_and_wait(TOPIC, key, value)
    return {"segment": stored.segment, "offset": stored.offset}


@app.get("/totals")
async def show() -> dict[str, int]:
    """Return the total of each customer."""
    return totals
