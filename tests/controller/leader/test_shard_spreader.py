"""Shards spread over daemons, with real controllers and fake servers, in virtual time."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from controller.connections.store import probe_writes
from controller.leader.shard_spreader import CONTEND_SECONDS, EVACUATION_SECONDS, EVACUATION_TRANSFER_SECONDS
from controller.leadership.policy.instance_record import STORE_LOST_SECONDS
from controller.leadership.policy.spread import MAX_IN_FLIGHT
from controller.leadership.policy.transitions import Leadership, Role
from controller.settings.sections import SpreadSettings
from controller.snapshots.job import take_snapshot
from headgate.errors import ConfigError, StoreUnavailableError
from headgate.ledger.identity import read_level
from headgate.ledger.ledger import Ledger
from tests.support.waiting import never, until
from tests.support.worlds.contenders import Cluster, Contender

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
        self.unreachable_seconds = 5.0
        self.shards = SHARDS

    async def start(self, name: str) -> Contender:
        daemon = Contender(self.cluster, name, contends_for=self.shards, shards=self.shards, spread=self.settings)
        daemon.unreachable_seconds = self.unreachable_seconds
        return await self._stack.enter_async_context(daemon.running())

    async def first(self) -> Contender:
        """Start a daemon that leads all shards."""
        first = await self.start("a")
        await until(lambda: len(first.led) == self.shards)
        return first

    async def two(self) -> tuple[Contender, Contender]:
        """Start two daemons that are ready, and lead the same number of shards."""
        a = await self.first()
        b = await self.start("b")
        await until(lambda: numbers(a, b) == [3, 3])
        await until(lambda: not a.spreader.doubts_store() and not b.spreader.doubts_store())
        return a, b

    async def behind_first(self, *names: str, seen: bool = False) -> list[Contender]:
        """Start a daemon that leads all shards, and others that wait for all of them; ``seen`` by the first, too."""
        first = await self.first()
        others = [await self.start(name) for name in names]
        await until(lambda: all(first.elections.queue(shard).waiting == {*names} for shard in range(self.shards)))
        await until(lambda: not seen or {*names} <= first.spreader.view.records.keys())
        return [first, *others]

    def try_writes(self, daemon: Contender) -> None:
        """Let a daemon try now, and then again and again, whether its store accepts writes."""
        probe = asyncio.create_task(probe_writes(daemon.store, daemon.instruments, daemon.spreader.doubts_store))
        self._stack.callback(probe.cancel)


@pytest.fixture
def daemons(stack: AsyncExitStack) -> Daemons:
    return Daemons(stack)


def numbers(*contenders: Contender) -> list[int]:
    return [len(each.led) for each in contenders]


RESTORE_SECONDS = 10.0


def restores_slowly(daemon: Contender) -> None:
    """Let it restore one state after the other, each in two steps and ten seconds."""
    daemon.controller._context.restoring.budget.spend = lambda _: asyncio.sleep(RESTORE_SECONDS / 2)


async def test_the_feature_level_rises_once_every_daemon_supports_it(daemons: Daemons) -> None:
    (a, b), state = await daemons.two(), daemons.cluster.zookeeper.service_state
    state.config = {"shards": SHARDS}
    b.spreader.own.record = replace(b.spreader.own.record, levels=(1, 99))
    await b.spreader.own.register()
    await until(lambda: (level := a.spreader.feature_level) is not None and level.newest == 99)

    assert "not every daemon supports feature level 99: daemon a supports" in str(await b.spreader.raise_level(99))
    a.spreader.own.record = replace(a.spreader.own.record, levels=(1, 99))
    await a.spreader.own.register()
    await until(lambda: not a.spreader.feature_level.problems)
    assert "newest level that a live daemon supports is 99" in str(await a.spreader.raise_level(98))
    a.store.outage()
    assert "store" in str(await a.spreader.raise_level(99)), "ZooKeeper may lose it"
    assert state.config == {"shards": SHARDS}
    a.store.outage(False)
    assert await a.spreader.raise_level(99) is await b.spreader.raise_level(98) is None
    assert await read_level(a.store) == 99

    await until(lambda: a.spreader.view.level == b.spreader.view.level == 99)
    assert state.config == {"shards": SHARDS, "level": 99}
    state.config = {"shards": SHARDS, "level": 1}
    await asyncio.sleep(10)
    assert a.spreader.view.level == 99, "an older copy of the configuration was written again"
    a.spreader.own.record = replace(a.spreader.own.record, levels=(1, 2))
    with pytest.raises(ConfigError, match="the cluster has feature level 99, and version 1 supports"):
        await a.spreader.run()


@pytest.mark.parametrize("enabled", [True, False])
async def test_daemons_that_start_together_share_the_states_that_are_to_be_restored(
    daemons: Daemons, stack: AsyncExitStack, enabled: bool
) -> None:
    """The first one gets all locks. Each state is restored once, and no daemon has to settle for it."""
    first = await daemons.first()
    for shard in range(SHARDS):
        first.controllers[shard].leader.commit.barrier()
        await first.controllers[shard].leader.commit.flush()
        assert await take_snapshot(Ledger(first.store, shard), least_chunks=1, now_ms=0)
    await first.stop()
    daemons.settings = SpreadSettings(settle_seconds=600.0, enabled=enabled)
    began = asyncio.get_running_loop().time()
    with capture_logs() as logs:
        b, c = await daemons.start("b"), await daemons.start("c")
        restores_slowly(b)
        restores_slowly(c)
        await until(lambda: len(b.led | c.led) == SHARDS, SHARDS * RESTORE_SECONDS + 20)
    assert (asyncio.get_running_loop().time() - began < (SHARDS - 0.5) * RESTORE_SECONDS) == enabled
    left = [line["shard"] for line in logs if line["event"] == "term.left"]
    assert sorted(numbers(b, c)) == ([3, 3] if enabled else [0, 6])
    assert len(set(left)) == len(left) == (3 if enabled else 0)
    assert all(line["after"] != "failed" for line in logs if line["event"] == "leadership.changed")


async def test_a_stopping_daemon_transfers_its_shards_to_one_that_has_just_started(daemons: Daemons) -> None:
    """As in a rolling restart: the other daemon is not in its last view."""
    a, b = await daemons.behind_first("b")
    assert "b" not in a.spreader.view.records

    await a.spreader.evacuate()

    await until(lambda: len(b.led) == SHARDS, 0.2)
    await until(lambda: b.spreader.state_of("a") == "leaving")


async def test_a_stopping_daemon_waits_for_a_silent_successor_only_for_some_seconds(daemons: Daemons) -> None:
    a, _ = await daemons.behind_first("b", seen=True)
    daemons.cluster.zookeeper.session_timeout_seconds = 1000
    daemons.cluster.zookeeper.partition("b")
    before = asyncio.get_running_loop().time()

    await a.stop()

    assert EVACUATION_SECONDS <= asyncio.get_running_loop().time() - before < 20


async def test_a_silent_successor_takes_no_time_from_the_other_shards_of_a_stopping_daemon(daemons: Daemons) -> None:
    """It is frozen, and its session lives on: ZooKeeper would leave the locks with it that are not passed on in time."""
    daemons.shards, daemons.settings = 40, SpreadSettings(enabled=False)
    a, _, c = await daemons.behind_first("b", "c", seen=True)
    daemons.cluster.zookeeper.session_timeout_seconds = 1000
    daemons.cluster.zookeeper.partition("b")
    before = asyncio.get_running_loop().time()

    await a.stop()

    await until(lambda: len(c.led) == daemons.shards, 0.5)
    assert asyncio.get_running_loop().time() - before < EVACUATION_TRANSFER_SECONDS + 1


async def test_a_stopping_daemon_waits_ten_seconds_for_its_only_successor(daemons: Daemons) -> None:
    """As docs/operations/upgrade.md promises: it is tried again while there is time."""
    a, b = await daemons.behind_first("b")
    b.store.freeze()
    stopping = asyncio.create_task(a.stop())
    await never(stopping.done, EVACUATION_SECONDS - 2)
    b.store.thaw()

    await stopping

    await until(lambda: len(b.led) == SHARDS, 0.2)


async def test_a_stopping_daemon_stays_until_the_terms_of_its_successors_have_begun(daemons: Daemons) -> None:
    """No more than four shards wait for their new leaders at a time. If one fails, this daemon could still lead."""
    a, b = await daemons.behind_first("b")
    allowed, create = asyncio.Event(), b.store.create

    async def held(path: str, data: bytes) -> None:
        await allowed.wait()
        await create(path, data)

    b.store.create = held  # type: ignore[method-assign]
    stopping = asyncio.create_task(a.stop())
    await until(lambda: len(a.led) == SHARDS - MAX_IN_FLIGHT)
    await never(lambda: stopping.done() or len(a.led) < SHARDS - MAX_IN_FLIGHT, 2)
    allowed.set()

    await stopping
    assert {each.follower.end.leader_instance for each in a.controllers} == {"b"}


@pytest.mark.parametrize("ready_seconds", [0, EVACUATION_SECONDS - 1])
async def test_a_stopping_daemon_passes_a_successor_over_that_begins_no_term(daemons: Daemons, ready_seconds: float):
    """Its session lives on, so ZooKeeper would leave the locks with it."""
    a, b, c = await daemons.behind_first("b", "c")

    async def never_ends(path: str, data: bytes) -> None:
        await asyncio.Event().wait()

    b.store.create = never_ends  # type: ignore[method-assign]
    b.store.freeze()
    c.store.freeze()
    stopping = asyncio.create_task(a.stop())
    await asyncio.sleep(ready_seconds)
    b.store.thaw()
    await until(lambda: len(a.led) < SHARDS, EVACUATION_TRANSFER_SECONDS)
    c.store.thaw()
    await stopping

    await until(lambda: len(c.led) == SHARDS, 0.5)


async def test_a_command_whose_successor_began_no_term_is_not_executed_again(daemons: Daemons) -> None:
    """Its client asks the leader that follows, which is the same daemon again."""
    a, b = await daemons.behind_first("b", seen=True)
    accepted, b.store.create = b.store.create, refused  # type: ignore[method-assign]
    problem = await a.spreader.transfer(0, "b", "first")
    await until(lambda: 0 in a.led)
    b.store.create = accepted  # type: ignore[method-assign]

    assert "daemon 'b' was ready" in problem
    assert await a.spreader.transfer(0, "b", "first") == problem
    assert 0 in a.led
    assert await a.spreader.transfer(0, "b", "second") is None


async def test_an_operator_has_a_shard_kept_where_it_is(daemons: Daemons) -> None:
    """Others move to the second daemon instead."""
    a = await daemons.first()
    kept = {0, 2, 4}
    assert [await a.spreader.transfer(shard, "a", "token") for shard in sorted(kept)] == [None] * 3

    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])

    assert a.led == kept
    moving = a.controllers[0].start_transfer("b", "operator")
    assert await a.spreader.transfer(0, "a", "token") == "shard 0 is being transferred to daemon 'b'"
    assert await moving is None
    await a.elections.registry.set_maintenance("a", on=True, token="True")
    assert await a.spreader.transfer(2, "a", "token") == "daemon 'a' is in maintenance: headgate daemon drain a --off"


async def test_a_transfer_to_a_daemon_that_cannot_take_the_shard_is_refused(daemons: Daemons) -> None:
    a, b = await daemons.behind_first("b", seen=True)

    assert await a.spreader.transfer(0, "x", "token") == "no daemon 'x' is live: headgate daemon list"
    b.elections.withdraw(0)
    await until(lambda: not a.elections.queue(0).waiting)
    assert await a.spreader.transfer(0, "b", "token") == "daemon 'b' does not contend for shard 0: see its log"
    assert await a.spreader.set_maintenance("x", on=True, token="True") == "no daemon 'x' is live: headgate daemon list"
    assert "no daemon 'x' is live, or was in" in str(await a.spreader.set_maintenance("x", on=False, token="False"))
    assert await a.spreader.set_maintenance("b", on=True, token="True") is None
    await until(lambda: a.spreader.view.maintenance)
    await until(lambda: b.spreader.state == "maintenance")
    assert await a.spreader.transfer(0, "b", "token") == "daemon 'b' is in maintenance: headgate daemon drain b --off"


async def test_a_transfer_waits_for_a_daemon_that_queues_again(daemons: Daemons) -> None:
    a, b = await daemons.behind_first("b", seen=True)
    b.elections.withdraw(0)
    await until(lambda: not a.elections.queue(0).waiting)
    transfer = asyncio.create_task(a.spreader.transfer(0, "b", "token"))
    await asyncio.sleep(CONTEND_SECONDS / 2)
    b.elections.contend(0)

    assert await transfer is None
    await until(lambda: 0 in b.led)


async def refused(path: str, data: bytes) -> None:
    raise StoreUnavailableError(f"{path}: the bucket refuses writes")


async def test_the_shards_of_a_daemon_whose_store_refuses_writes_move_to_one_whose_store_accepts_them(daemons: Daemons):
    daemons.unreachable_seconds, daemons.settings = 600, SpreadSettings(settle_seconds=1)
    a, b = await daemons.two()

    accepted, a.store.create = a.store.create, refused  # type: ignore[method-assign]
    for each in (a, b):
        daemons.try_writes(each)
    await until(lambda: numbers(a, b) == [0, 6], STORE_LOST_SECONDS + 10)
    await until(lambda: b.spreader.state_of("a") == "no_store")
    assert await b.spreader.transfer(0, "a", "token") == "daemon 'a' cannot write to the store: see its log"

    # It gets none, not by the spread either: its queue ends behind those that can lead.
    await never(lambda: a.led, 60)
    a.store.create = accepted  # type: ignore[method-assign]
    await until(lambda: a.led)


async def test_without_the_broker_the_terms_end_once_and_none_begins_until_a_daemon_reaches_it(daemons: Daemons):
    a, b = await daemons.two()
    c = await daemons.start("c")
    await until(lambda: numbers(a, b, c) == [2, 2, 2])
    chunks = [await Ledger(a.store, shard).newest() for shard in range(SHARDS)]

    daemons.cluster.broker.stop()
    await until(lambda: numbers(a, b, c) == [0, 0, 0])
    await asyncio.sleep(120)
    assert chunks == [await Ledger(a.store, shard).newest() for shard in range(SHARDS)]

    # In any order of the queues, the only daemon that reaches the broker gets the locks.
    for cut in "ab":
        daemons.cluster.broker.cut(f"daemon-{cut}")
    daemons.cluster.broker.start()
    await until(lambda: numbers(a, b, c) == [0, 0, 6], 30)


async def test_a_contender_whose_lock_is_gone_does_not_wait_for_the_broker_any_more(daemons: Daemons) -> None:
    a, zookeeper = await daemons.first(), daemons.cluster.zookeeper
    daemons.cluster.broker.stop()
    await until(lambda: not a.led)
    zookeeper.partition("a")
    await until(lambda: not any(each.leadership.in_contact for each in a.controllers))
    daemons.cluster.broker.start()
    await never(lambda: a.led, 30)
    b = await daemons.start("b")
    await until(lambda: len(b.led) == SHARDS)
    zookeeper.heal("a")
    await until(lambda: all(each.leadership == Leadership(Role.FOLLOWING) for each in a.controllers))
    await never(lambda: a.led, 10)
