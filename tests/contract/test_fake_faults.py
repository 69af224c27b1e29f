"""The faults of the fakes: they occur on demand and reproducibly."""

from __future__ import annotations

import asyncio
import random

import pytest

from headgate.errors import ObjectExistsError, ObjectMissingError, OutcomeUnknownError, StoreUnavailableError
from tests.support.fakes.broker import FakeBroker, FakeTransport, Faults, Message
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.zookeeper import FakeZooKeeper
from tests.support.waiting import never, until

pytestmark = pytest.mark.looptime


async def connected(broker: FakeBroker, client_id: str, will: tuple[str, bytes, bool] | None = None) -> FakeTransport:
    transport = await broker.transport(client_id, will).__aenter__()
    await until(lambda: transport.connected)
    return transport


async def run_once(seed: int) -> list[tuple[float, bytes]]:
    """Run one schedule with every fault, a drop and a pause; return the messages and their times."""
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


async def test_a_damaged_read_differs_in_one_bit_and_leaves_the_object_intact() -> None:
    store = FakeStore(objects={"a": bytes(100)})
    store.damaged_reads = 0.5
    found = [int.from_bytes(await store.read("a"), "little").bit_count() for _ in range(100)]

    assert {0, 1} == set(found)
    assert 30 < sum(found) < 70
    store.damaged_reads = 0.0
    assert bytes(100) == await store.read("a")


async def test_a_read_finds_what_there_was_when_it_was_called() -> None:
    store = FakeStore(latency_seconds=(1, 1))
    reading, listing = asyncio.create_task(store.read("f/a")), asyncio.create_task(store.names("f"))
    await store.create("f/a", b"x")

    with pytest.raises(ObjectMissingError):
        await reading
    assert await listing == []
    assert (await store.read("f/a"), await store.names("f")) == (b"x", ["a"])


async def test_one_seed_produces_one_schedule() -> None:
    first = await run_once(7)

    again = await run_once(7)
    other = await run_once(8)

    assert [payload for _, payload in again] == [payload for _, payload in first]
    assert [at for at, _ in again] == pytest.approx([at for at, _ in first], abs=1e-4)
    assert [payload for _, payload in other] != [payload for _, payload in first]


async def test_messages_are_lost_duplicated_and_reordered_with_the_set_probabilities() -> None:
    broker = FakeBroker(random.Random(1), Faults((0.001, 0.05), loss=0.2, duplication=0.2, reorder=True))
    a = await connected(broker, "a")
    got: list[int] = []
    await a.subscribe("x", lambda _, payload: got.append(int(payload)))
    for n in range(1000):
        a.publish("x", b"%d" % n)
    await asyncio.sleep(1)

    # Two directions: 0.8 * 0.8 of the messages arrive, and 0.2 of them are duplicated in each direction.
    assert 560 < len(set(got)) < 720
    assert 780 < len(got) < 1050
    assert got != sorted(got)


async def test_retained_messages_are_delayed_but_never_lost_or_duplicated() -> None:
    broker = FakeBroker(random.Random(1), Faults(loss=1.0, duplication=1.0))
    a = await connected(broker, "a")
    got: list[bytes] = []
    await a.subscribe("x", lambda _, payload: got.append(payload))
    for n in range(20):
        a.publish("x", b"%d" % n, retain=True)

    await until(lambda: len(got) == 20)
    await never(lambda: len(got) > 20, 1.0)
    assert got == [b"%d" % n for n in range(20)]


async def test_messages_of_a_frozen_client_are_transferred_later_in_order() -> None:
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


async def test_dropping_a_frozen_client_publishes_its_will_and_loses_queued_messages() -> None:
    broker = FakeBroker()
    seen: list[Message] = []
    broker.spies.append(seen.append)
    b = await connected(broker, "b", ("gone", b"b", True))
    broker.pause("b")
    b.publish("x", b"held")
    broker.drop("b")

    assert seen == [Message("gone", b"b", True, "b")]
    # A frozen client cannot reconnect.
    await never(lambda: b.connected, 10)
    broker.resume("b")
    await until(lambda: b.connected)
    assert len(seen) == 1


async def test_a_cut_client_reconnects_when_healed() -> None:
    broker = FakeBroker()
    a = await connected(broker, "a")
    broker.cut("a")
    await never(lambda: a.connected, 10)

    broker.heal("a")

    await until(lambda: a.connected)


async def test_retained_messages_survive_a_stop_of_the_broker() -> None:
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

    await a.subscribe("x", lambda _, payload: got.append(payload), retained=True)

    await until(lambda: got == [b"kept"])


async def test_a_store_fails_the_requested_number_of_times() -> None:
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


async def test_every_call_fails_during_a_store_outage() -> None:
    store = FakeStore()
    await store.create("a/1", b"")
    store.outage()

    for call in (store.create("a/2", b""), store.read("a/1"), store.names("a"), store.delete("a/1")):
        with pytest.raises(StoreUnavailableError):
            await call

    store.outage(False)
    assert await store.names("a") == ["1"]


async def test_a_frozen_store_completes_calls_when_it_continues() -> None:
    store = FakeStore()
    store.freeze()
    write = asyncio.create_task(store.create("a/1", b"x"))
    await never(write.done, 60)
    assert store.objects == {}

    store.thaw()

    await write
    assert store.objects == {"a/1": b"x"}


async def test_stores_with_shared_objects_are_clients_of_one_bucket() -> None:
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


async def test_store_faults_occur_with_the_set_probabilities() -> None:
    store = FakeStore(random.Random(3))
    store.probabilities |= {"unavailable": 0.1, "unknown_lost": 0.1}
    outcomes = await asyncio.gather(*(store.create(f"a/{n}", b"") for n in range(1000)), return_exceptions=True)

    assert 60 < sum(isinstance(outcome, StoreUnavailableError) for outcome in outcomes) < 140
    assert 60 < sum(isinstance(outcome, OutcomeUnknownError) for outcome in outcomes) < 140
    assert len(store.objects) == sum(outcome is None for outcome in outcomes)


async def test_a_queue_settles_while_a_restarted_client_has_two_places() -> None:
    """A place remains until its session expires. Moving the other one in front of it in turns would never end."""
    rng = random.Random(0)
    service = FakeZooKeeper(rng)
    clients = [await service.elections(name, lambda _: None).__aenter__() for name in ("a", "b", "b")]
    for client in clients:
        client.contend(0)
        await until(lambda client=client: client.queue(0) is not None)
    clients[0].place_next(0, "b")
    await until(lambda: clients[0].queue(0).next == "b")
    await asyncio.sleep(1)
    settled = rng.getstate()

    await asyncio.sleep(1)

    assert [each.owner.instance for each in service.own_queue(0)] == ["a", "b", "b"]
    assert rng.getstate() == settled  # It draws a delay for each message.
