"""A consumer whose program hangs, beside one that works, with the real leader of a shard, in virtual time."""

import asyncio

import pytest

from headgate.errors import RequestRejectedError
from headgate.process.background import end_tasks
from tests.support.waiting import until
from tests.support.worlds.one_shard_programs import orders, produce, reader

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("runs", [False, True], ids=["loop", "run"])
async def test_the_segment_of_a_program_that_hangs_is_read_by_another_until_it_asks_for_records_again(runs):
    lost, resumed, found = [], asyncio.Event(), []

    async def hang(record):
        found.append(record)
        await resumed.wait()

    async with orders() as (world, admin):
        await admin.create_subscription("orders", "billing", start="earliest")
        async with (
            reader(world, "hangs", on_revoked=lambda *gone: lost.append(gone)) as hanging,
            reader(world, "works") as working,
        ):
            await until(lambda: len(hanging.segments) == len(working.segments) == 1)
            await admin.set_delivery_policy("orders", "billing", max_processing_seconds=60)
            lost.clear()
            (stuck,) = hanging.segments
            await produce(world, 40)
            reading = asyncio.create_task(hanging.run(hang) if runs else hang(await anext(hanging)))
            await until(lambda: found)
            working_on = asyncio.create_task(working.run(lambda _: None))
            await until(lambda: stuck in working.segments, 200)
            await until(lambda: lost)
            await asyncio.sleep(120)
            assert [] == hanging.segments, "it gets no segment before it asks for a record"
            resumed.set()
            if not runs:
                await reading
                reading = asyncio.create_task(anext(hanging))
            await until(lambda: hanging.segments)
            assert ([stuck], 0.0) == lost[0]
            await end_tasks(reading, working_on)
    assert 1 == world.registry.get_sample_value("headgate_segments_stalled_total", {"outcome": "moved"})


async def test_a_subscription_without_acknowledgements_has_no_limit():
    async with orders() as (_, admin):
        await admin.create_subscription("orders", "billing", type="CHECKPOINT")
        with pytest.raises(RequestRejectedError, match="is of type CHECKPOINT: only ignored-by-retention can be set"):
            await admin.set_delivery_policy("orders", "billing", max_processing_seconds=60)
