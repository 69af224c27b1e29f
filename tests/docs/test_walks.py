"""The walks of docs/architecture.md, checked by the real code: the files that it names run, and how many run is said there.

Clients, leader and daemons are real, the servers are fakes, and time is virtual. So adapters and the Spark process do not
run, and modules of tables and values only are no calls.
"""

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from controller.settings.sections import SpreadSettings
from headgate.client.admin import Admin
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.producer import Producer
from tests.support.source_folders import ROOT
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender
from tests.support.worlds.one_shard_programs import client, orders, produce, reader

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PRODUCT = ("headgate/", "controller/", "coordinator/", "shard/", "metrics/", "web/", "drain/")
NOT_HERE = re.compile(r"headgate/transport/mqtt|queue_order|object_store|/zookeeper/|^drain/|^headgate/views")
"""Adapters and what only they call, the Spark process, tables and values."""


@contextmanager
def running() -> Iterator[set[str]]:
    """Collect the files of the product of which a function is called."""
    found: set[str] = set()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    threading.setprofile(on_event)
    sys.setprofile(on_event)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        relative = {str(Path(each).relative_to(ROOT)) for each in found if each.startswith(str(ROOT))}
        found.clear()
        found.update(each for each in relative if each.startswith(PRODUCT))


def check(title: str, run: set[str]) -> None:
    """Compare a walk with the files that ran: those that it names, and the number that it says."""
    [text] = re.findall(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    named = {each for each in re.findall(r"`([\w/]+\.py)`", text) if "/" in each and not NOT_HERE.search(each)}
    [most] = re.findall(r"^(\d+) files run", text, re.MULTILINE)

    assert set() == named - run, "named, but no function of it runs"
    assert len(run) <= int(most), sorted(run)


async def test_a_shard_from_one_daemon_to_another() -> None:
    cluster, two = Cluster(), partial(Contender, shards=2, contends_for=2, spread=SpreadSettings(settle_seconds=20))
    async with two(cluster, "a").running() as a:
        await until(lambda: len(a.led) == 2)
        async with two(cluster, "b").running() as b:
            await asyncio.sleep(5)
            with running() as run:
                await until(lambda: len(b.led) == 1)
    check("A shard, from one daemon to another", run)


async def test_a_record_from_send_to_the_consumer() -> None:
    handled: asyncio.Queue[ConsumedRecord] = asyncio.Queue()
    async with orders(segments=1) as (world, _), reader(world) as consumer:
        assert world.registry, "there are metrics"
        task = asyncio.create_task(consumer.run(handled.put))  # A function in a thread would let the loop's time pass.
        async with Producer(client(world, "producer")) as producer:
            for seconds in (2, 0.2):  # Then both are at work, and nothing that is no step is due by the clock.
                await (await producer.send("orders", b"key", b"earlier"))
                await asyncio.sleep(seconds)
            with running() as run:
                await (await producer.send("orders", b"key", b"last"))
                await until(lambda: handled.qsize() == 3)
        consumer.stop()
        await task
    check("A record, from", run)


async def test_an_acknowledgement_to_the_grant_of_the_child() -> None:
    async with orders(segments=1) as (world, admin), reader(world) as consumer:
        await produce(world, 1)
        record = await anext(consumer)
        await admin.split("orders", 0)
        world.drained_segments = {0: 1}
        assert world.registry, "there are metrics"
        with running() as run:
            await consumer.acknowledge(record)
            await until(lambda: len(consumer._feed.holdings) == 2)
    check("An acknowledgement, to the grant of the child", run)


async def test_a_backlog_question_to_its_answer() -> None:
    async with orders(segments=1, records=1) as (world, _), reader(world), Admin(client(world, "asks")) as admin:
        await asyncio.sleep(1)
        with running() as run:
            await admin.backlog("orders", "billing")
    check("A backlog question, to its answer", run)
