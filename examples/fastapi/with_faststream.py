"""FastAPI and FastStream in one process: requests become records, and a handler works on them.

Run it beside `headgate up`, with a topic of its own, because the handler takes every record for an order:

    pip install . ./integrations/faststream fastapi uvicorn
    headgate topic create web-orders
    uvicorn --app-dir examples/fastapi with_faststream:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from headgate_faststream import HeadgateBroker, HeadgateMessage
from pydantic import BaseModel, Field

TOPIC = os.environ.get("TOPIC", "web-orders")
broker = HeadgateBroker()
totals: dict[str, int] = {}


class Order(BaseModel):
    """What a request has, and a handler gets."""

    customer: str = Field(min_length=1)  # a key is never empty
    total: int


@broker.subscriber(TOPIC, subscription="totals", start="earliest", max_workers=16)
async def add(order: Order, message: HeadgateMessage) -> None:
    """Add an order to its customer's total. The orders of a customer arrive one by one, in order."""
    totals[message.record.key.decode()] = totals.get(order.customer, 0) + order.total


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Start the handlers with the server. At its end they finish, and what they have handled is acknowledged."""
    await broker.start()
    yield
    await broker.stop()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create(order: Order) -> dict[str, int | None]:
    """Store an order; the answer comes when it is durable."""
    stored = await broker.publish(order, TOPIC, key=order.customer)
    return {"segment": stored.segment, "offset": stored.offset}


@app.get("/totals")
async def show() -> dict[str, int]:
    """Return the total of each customer."""
    return totals
