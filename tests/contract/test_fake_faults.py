"""What only the fakes can do: fail on demand, and the same way each time."""

from __future__ import annotations

import asyncio
import random

import pytest

from headgate.errors import ObjectExistsError, ObjectMissingError, OutcomeUnknownError, StoreUnavailableError
from tests.support.broker import FakeBroker, FakeTransport, Faults, Message
from tests.support.object_store import FakeStore
from tests.support.waiting import never, until

pytestmark = pytest.mark.looptime


async def connected(broker: FakeBroker, client_id: str, will: tuple[str, bytes, bool] | None = None) -> FakeTransport:
    transport = await broker.transport(client_id, will).__aenter__()
    await until(lambda: transport.connected)
    return transport


async def run_once(seed: int) -> list[tuple[float, bytes]]:
    """One schedule with every fault, a drop and a pause; returns what arrived and when."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    broker = FakeBroker(random.Random(seed), Faults((0.001, 0.1), loss=0.1, duplication=0.1, reorder=True))
    got: list[tuple[float, bytes]] = []
    a, b = await connected(broker, "a"), await connected(broker, "b")
    await b.subscribe("x", lambda _, payload: got.append((loop.time() - began, payload)))
    for n in range(100):
        a.publish("x", b"%d" % n)
        await asyncio.sleep(0.01)
        if n == 30:
            broker.drop("b")
        if n == 60:
            broker.pause("b")
        if n == 80:
            broker.resume("b")
    await asyncio.sleep(1)
    await a.__aexit__()
    await b.__aexit__()
    return got


async def test_one_seed_gives_one_schedule() -> None:
    first = await run_once(7)

    again = await run_once(7)
    other = await run_once(8)

    assert [payload for _, payload in again] == [payload for _, payload in first]
    assert [at for at, _ in again] == pytest.approx([at for at, _ in first], abs=1e-4)
    assert [payload for _, payload in other] != [payload for _, payload in first]


async def test_messages_are_lost_doubled_and_overtaken_as_often_as_asked() -> None:
    broker = FakeBroker(random.Random(1), Faults((0.001, 0.05), loss=0.2, duplication=0.2, reorder=True))
    a = await connected(broker, "a")
    got: list[int] = []
    await a.subscribe("x", lambda _, payload: got.append(int(payload)))
    for n in range(1000):
        a.publish("x", b"%d" % n)
    await asyncio.sleep(1)

    # Two ways: 0.8 * 0.8 get through each time; a copy comes of 0.2 of those, each way.
    assert 560 < len(set(got)) < 720
    assert 780 < len(got) < 1050
    assert got != sorted(got)


async def test_retained_messages_are_late_but_never_lost_or_doubled() -> None:
    broker = FakeBroker(random.Random(1), Faults(loss=1.0, duplication=1.0))
    a = await connected(broker, "a")
    got: list[bytes] = []
    await a.subscribe("x", lambda _, payload: got.append(payload))
    for n in range(20):
        a.publish("x", b"%d" % n, retain=True)

    await until(lambda: len(got) == 20)
    await never(lambda: len(got) > 20, 1.0)
    assert got == [b"%d" % n for n in range(20)]


async def test_a_frozen_client_gets_and_sends_everything_late_and_in_order() -> None:
    broker = FakeBroker()
    a, b = await connected(broker, "a"), await connected(broker, "b")
    at_a: list[bytes] = []
    at_b: list[bytes] = []
    await a.subscribe("to-a", lambda _, payload: at_a.append(payload))
    await b.subscribe("to-b", lambda _, payload: at_b.append(payload))

    broker.pause("b")
    for n in range(20):
        a.publish("to-b", b"%d" % n)
        b.publish("to-a", b"%d" % n)
    await never(lambda: at_a or at_b, 30)
    assert b.connected
    broker.resume("b")

    await until(lambda: len(at_a) == len(at_b) == 20)
    assert at_a == at_b == [b"%d" % n for n in range(20)]


async def test_a_frozen_client_that_is_dropped_leaves_its_will_and_loses_what_was_held() -> None:
    broker = FakeBroker()
    seen: list[Message] = []
    broker.spies.append(seen.append)
    b = await connected(broker, "b", ("gone", b"b", True))
    broker.pause("b")
    b.publish("x", b"held")
    broker.drop("b")

    assert seen == [Message("gone", b"b", True, "b")]
    # Frozen, it cannot come back either.
    await never(lambda: b.connected, 10)
    broker.resume("b")
    await until(lambda: b.connected)
    assert len(seen) == 1


async def test_a_client_that_is_cut_off_comes_back_when_healed() -> None:
    broker = FakeBroker()
    a = await connected(broker, "a")
    broker.cut("a")
    await never(lambda: a.connected, 10)

    broker.heal("a")

    await until(lambda: a.connected)


async def test_what_the_broker_retained_outlives_it() -> None:
    broker = FakeBroker()
    a = await connected(broker, "a", ("gone", b"", False))
    seen: list[Message] = []
    a.publish("x", b"kept", retain=True)
    await until(lambda: broker.retained)
    broker.spies.append(seen.append)
    broker.stop()
    assert (broker.connected(), seen) == ([], [])
    broker.start()
    await until(lambda: a.connected)
    got: list[bytes] = []

    await a.subscribe("x", lambda _, payload: got.append(payload))

    await until(lambda: got == [b"kept"])


async def test_a_store_fails_as_told_and_then_no_more() -> None:
    store = FakeStore()
    store.fail_next("unavailable")
    store.fail_next("unknown_lost")
    store.fail_next("unknown_written")

    with pytest.raises(StoreUnavailableError):
        await store.create("a/1", b"")
    with pytest.raises(OutcomeUnknownError):
        await store.create("a/1", b"")
    assert store.objects == {}
    with pytest.raises(OutcomeUnknownError):
        await store.create("a/1", b"")
    assert store.objects == {"a/1": b""}
    await store.create("a/2", b"")


async def test_an_outage_of_the_store_stops_everything_and_writes_nothing() -> None:
    store = FakeStore()
    await store.create("a/1", b"")
    store.outage()

    for call in (store.create("a/2", b""), store.read("a/1"), store.names("a"), store.delete("a/1")):
        with pytest.raises(StoreUnavailableError):
            await call

    store.outage(False)
    assert await store.names("a") == ["1"]


async def test_a_frozen_store_answers_when_it_goes_on() -> None:
    store = FakeStore()
    store.freeze()
    write = asyncio.create_task(store.create("a/1", b"x"))
    await never(write.done, 60)
    assert store.objects == {}

    store.thaw()

    await write
    assert store.objects == {"a/1": b"x"}


async def test_stores_that_share_their_objects_are_clients_of_one_bucket() -> None:
    one = FakeStore(latency_seconds=(0.1, 0.2))
    other = FakeStore(objects=one.objects)
    slow = asyncio.create_task(one.create("a/1", b"slow"))
    await asyncio.sleep(0)

    await other.create("a/1", b"fast")

    with pytest.raises(ObjectExistsError):
        await slow
    assert await one.read("a/1") == b"fast"
    with pytest.raises(ObjectMissingError):
        await other.read("a/2")


async def test_a_stores_faults_come_as_often_as_asked() -> None:
    store = FakeStore(random.Random(3))
    store.probabilities |= {"unavailable": 0.1, "unknown_lost": 0.1}
    outcomes = await asyncio.gather(*(store.create(f"a/{n}", b"") for n in range(1000)), return_exceptions=True)

    assert 60 < sum(isinstance(outcome, StoreUnavailableError) for outcome in outcomes) < 140
    assert 60 < sum(isinstance(outcome, OutcomeUnknownError) for outcome in outcomes) < 140
    assert len(store.objects) == sum(outcome is None for outcome in outcomes)
