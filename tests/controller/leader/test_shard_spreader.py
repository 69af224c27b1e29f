"""Shards spread over daemons, with real controllers and fake servers, in virtual time."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from controller.leadership.instance_record import read_record
from controller.settings.load import SpreadSettings
from tests.support.waiting import never, until
from tests.support.worlds.contenders import Cluster, Contender

pytestmark = pytest.mark.looptime
SHARDS = 6
SETTLE_SECONDS = 20.0


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


class Daemons:
    """Daemons that start one after the other."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.cluster = Cluster()
        self._stack = stack
        self.settings = SpreadSettings(settle_seconds=SETTLE_SECONDS)

    async def start(self, name: str) -> Contender:
        daemon = Contender(self.cluster, name, contends_for=SHARDS, shards=SHARDS, spread=self.settings)
        return await self._stack.enter_async_context(daemon.running())

    async def first(self) -> Contender:
        """Start a daemon that leads all shards."""
        first = await self.start("a")
        await until(lambda: len(first.led) == SHARDS)
        return first


@pytest.fixture
def daemons(stack: AsyncExitStack) -> Daemons:
    return Daemons(stack)


def numbers(*contenders: Contender) -> list[int]:
    return [len(each.led) for each in contenders]


async def test_a_second_and_a_third_daemon_get_their_shards_once_they_have_settled(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")

    await never(lambda: b.led, SETTLE_SECONDS - 1)
    await until(lambda: numbers(a, b) == [3, 3], 30)
    c = await daemons.start("c")
    await until(lambda: numbers(a, b, c) == [2, 2, 2])

    spread = [a.led, b.led, c.led]
    await never(lambda: spread != [a.led, b.led, c.led], 120)


async def test_a_daemon_that_starts_again_and_again_gets_nothing(daemons: Daemons) -> None:
    """Its session ends before it has settled."""
    a = await daemons.first()
    b = await daemons.start("b")
    for _ in range(10):
        await never(lambda: b.led, SETTLE_SECONDS * 0.8)
        daemons.cluster.zookeeper.expire_session("b")

    await until(lambda: numbers(a, b) == [3, 3])


async def test_a_young_term_is_not_moved(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])
    c = await daemons.start("c")
    await until(lambda: len(c.led) == 2)
    # "a" leads all shards again, and the others have settled.
    for shard in sorted(b.led | c.led):
        source = b if shard in b.led else c
        assert await source.controllers[shard].start_transfer("a", "maintenance") is None
    await until(lambda: len(a.led) == SHARDS)

    await never(lambda: b.led or c.led, SETTLE_SECONDS - 15)
    await until(lambda: numbers(a, b, c) == [2, 2, 2])


async def test_maintenance_empties_a_daemon_and_its_end_fills_it_again(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])

    await b.elections.set_maintenance("a", on=True)
    await until(lambda: numbers(a, b) == [0, 6], 10)
    await never(lambda: a.led, 60)
    await a.elections.set_maintenance("a", on=False)
    await until(lambda: numbers(a, b) == [3, 3])


async def test_a_stopping_daemon_transfers_its_shards_at_once(daemons: Daemons) -> None:
    """It needs no settled successor."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: a.spreader.view.records.keys() == {"a", "b"})
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
    before = asyncio.get_running_loop().time()

    await a.stop()

    assert asyncio.get_running_loop().time() - before < 1
    await until(lambda: len(b.led) == SHARDS, 0.2)


async def test_the_last_daemon_stops_without_a_successor(daemons: Daemons) -> None:
    a = await daemons.first()
    before = asyncio.get_running_loop().time()

    await a.stop()

    assert asyncio.get_running_loop().time() - before < 1


async def test_a_stopping_daemon_waits_for_a_silent_successor_only_for_some_seconds(daemons: Daemons) -> None:
    a = await daemons.first()
    await daemons.start("b")
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
    await until(lambda: a.spreader.view.records.keys() == {"a", "b"})
    daemons.cluster.zookeeper.session_timeout_seconds = 1000
    daemons.cluster.zookeeper.partition("b")
    before = asyncio.get_running_loop().time()

    await a.stop()

    assert 2 < asyncio.get_running_loop().time() - before < 20


async def test_an_operator_moves_a_shard_which_then_stays(daemons: Daemons) -> None:
    """Another shard makes up for it."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])
    shard = min(a.led)

    assert await a.spreader.transfer(shard, "b") is None
    await until(lambda: shard in b.led)
    await until(lambda: numbers(a, b) == [3, 3])

    await never(lambda: shard not in b.led, 60)


async def test_a_transfer_to_a_daemon_that_cannot_take_the_shard_is_refused(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: a.elections.queue(0).waiting == {"b"} and "b" in a.spreader.view.records)

    assert await a.spreader.transfer(0, "x") == "no daemon 'x' is live: headgate daemon list"
    b.elections.withdraw(0)
    await until(lambda: not a.elections.queue(0).waiting)
    assert await a.spreader.transfer(0, "b") == "daemon 'b' does not contend for shard 0: see its log"
    assert await a.spreader.set_maintenance("x", on=True) == "no daemon 'x' is live: headgate daemon list"
    assert await a.spreader.set_maintenance("x", on=False) is None
    assert await a.spreader.set_maintenance("b", on=True) is None
    await until(lambda: a.spreader.view.maintenance)
    await until(lambda: b.spreader.state == "maintenance")
    assert await a.spreader.transfer(0, "b") == "daemon 'b' is in maintenance: headgate daemon drain b --off"


async def test_shards_are_not_spread_if_the_setting_is_off(daemons: Daemons) -> None:
    daemons.settings = SpreadSettings(enabled=False, settle_seconds=0)
    a = await daemons.first()
    b = await daemons.start("b")

    await never(lambda: b.led, 100)
    # Maintenance works nevertheless.
    await a.elections.set_maintenance("a", on=True)
    await until(lambda: numbers(a, b) == [0, 6])


async def test_a_daemon_registers_that_it_has_settled(daemons: Daemons) -> None:
    a = await daemons.start("a")
    await until(lambda: "a" in a.spreader.view.records)
    assert not a.spreader.view.records["a"].settled

    await until(lambda: a.spreader.view.records["a"].settled)

    data = (await a.elections.instances())["a"]
    assert (read_record(data).version, read_record(data).settled) == ("1", True)
