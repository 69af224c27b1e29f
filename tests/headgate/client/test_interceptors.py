"""Interceptors of a producer and of a run, with the real leader of a shard, in virtual time."""

import pytest
from msgspec.structs import replace

from headgate import ConsumedRecord, Interceptor, OutgoingRecord, Producer
from headgate.errors import RequestRejectedError
from tests.support.worlds.one_shard_programs import client, orders, reader


class Noting(Interceptor):
    """Notes what passes, and adds its name to it."""

    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    def intercept_send(self, send):
        async def noted(record: OutgoingRecord):
            self.seen.append((self.name, record.headers))
            return await send(replace(record, headers=(*record.headers, (self.name, b""))))

        return noted

    def intercept_handle(self, handle, *, subscription, consumer):
        async def noted(found: list[ConsumedRecord]):
            self.seen.append((self.name, subscription, consumer, [record.value for record in found]))
            await handle(found)
            self.seen.append((self.name, "handled"))

        return noted


async def test_the_first_interceptor_is_the_outermost_and_what_they_change_is_sent_and_checked():
    seen = []
    chain = [Noting("a", seen), Noting("b", seen)]
    async with orders(segments=1) as (world, _):
        async with Producer(client(world, "p"), interceptors=chain) as producer:
            await producer.send_and_wait("orders", b"key", b"1", headers={"own": b"1"})
            with pytest.raises(RequestRejectedError, match="65 headers"):
                await producer.send("orders", b"key", b"2", headers=[(str(n), b"") for n in range(63)])
            await (await producer.send_many("orders", [b"key"], [b"3"]))
        async with reader(world) as consumer:
            assert (("own", b"1"), ("a", b""), ("b", b"")) == (await anext(consumer)).headers
            assert (("a", b""), ("b", b"")) == (await anext(consumer)).headers
    assert [("a", (("own", b"1"),)), ("b", (("own", b"1"), ("a", b"")))] == seen[:2]


async def test_a_run_passes_every_call_of_its_handler_through_the_chain():
    seen, handled = [], []
    chain = [Noting("a", seen), Noting("b", seen)]
    async with orders(segments=1, records=2) as (world, _), reader(world, interceptors=chain) as consumer:
        report = await consumer.run(lambda record: handled.append(record.value), until_caught_up=True)
        assert (2, 2) == (report.handled, consumer.metrics().handler_calls)
    assert [b"0", b"1"] == handled
    first = [("a", "billing", "c", [b"0"]), ("b", "billing", "c", [b"0"]), ("b", "handled"), ("a", "handled")]
    assert first == seen[:4]
