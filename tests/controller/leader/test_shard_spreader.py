"""Shards spread over daemons, with real controllers and fake servers, in virtual time."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from controller.connections.store import probe_writes
from controller.leader.shard_spreader import CONTEND_SECONDS, EVACUATION_SECONDS, VIEW_INTERVAL_SECONDS
from controller.leadership.policy.instance_record import read_record
from controller.leadership.policy.readiness import BROKER_LOST_SECONDS, STABLE_SECONDS, STORE_LOST_SECONDS
from controller.leadership.policy.transfer_pace import MAX_IN_FLIGHT
from controller.leadership.policy.transitions import Role
from controller.settings.load import SpreadSettings
from controller.snapshots.job import take_snapshot
from headgate.errors import StoreUnavailableError
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.model.hashing import shard_of
from shard.steps import ResultT, Steps, complete
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
        self.unreachable_seconds = 5.0

    async def start(self, name: str) -> Contender:
        daemon = Contender(self.cluster, name, contends_for=SHARDS, shards=SHARDS, spread=self.settings)
        daemon.unreachable_seconds = self.unreachable_seconds
        return await self._stack.enter_async_context(daemon.running())

    async def first(self) -> Contender:
        """Start a daemon that leads all shards."""
        first = await self.start("a")
        await until(lambda: len(first.led) == SHARDS)
        return first

    async def two(self) -> tuple[Contender, Contender]:
        """Start two daemons that are ready, and lead the same number of shards."""
        a = await self.first()
        b = await self.start("b")
        await until(lambda: numbers(a, b) == [3, 3])
        await until(lambda: not a.spreader.doubts_store() and not b.spreader.doubts_store())
        return a, b

    def try_writes(self, daemon: Contender) -> None:
        """Let a daemon try now, and then again and again, whether its store accepts writes."""
        probe = asyncio.create_task(probe_writes(daemon.store, daemon.instruments, daemon.spreader.doubts_store))
        self._stack.callback(probe.cancel)


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


RESTORE_SECONDS = 10.0


async def restores_slowly(daemon: Contender) -> None:
    """Let it restore one state after the other, each in ten seconds."""
    turn = asyncio.Lock()

    async def take_steps(steps: Steps[ResultT]) -> ResultT:
        async with turn:
            next(steps)
            await asyncio.sleep(RESTORE_SECONDS)
            return complete(steps)

    for controller in daemon.controllers:
        controller.follower._context = replace(controller.follower._context, take_steps=take_steps)


async def snapshots_of_all(first: Contender) -> None:
    for shard in range(SHARDS):
        first.controllers[shard].leader.commit.barrier()
        await first.controllers[shard].leader.commit.flush()
        assert await take_snapshot(Ledger(first.store, shard), least_chunks=1, now_ms=0)


async def test_a_state_that_is_being_restored_does_not_wait_for_it(daemons: Daemons) -> None:
    """It would be restored a second time elsewhere."""
    first = await daemons.first()
    await snapshots_of_all(first)
    await first.stop()
    alone = await daemons.start("b")
    await restores_slowly(alone)
    await asyncio.sleep(RESTORE_SECONDS / 2)

    assert SHARDS - 1 == sum(each.waits_to_restore for each in alone.controllers)


async def test_a_state_that_is_being_restored_when_the_lock_is_acquired_does_not_wait_for_it(daemons: Daemons) -> None:
    first = await daemons.first()
    await snapshots_of_all(first)
    follower = await daemons.start("b")
    await restores_slowly(follower)
    await asyncio.sleep(RESTORE_SECONDS / 2)
    following = [each.shard for each in follower.controllers if each.follower.reading.locked()]
    assert following
    daemons.cluster.zookeeper.expire_session("a")
    await until(lambda: all(each.leadership.role is Role.CATCHING_UP for each in follower.controllers), 5)

    assert not {each.shard for each in follower.controllers if each.waits_to_restore}.intersection(following)


@pytest.mark.parametrize("enabled", [True, False])
async def test_daemons_that_start_together_share_the_states_that_are_to_be_restored(
    daemons: Daemons, stack: AsyncExitStack, enabled: bool
) -> None:
    """The first one gets all locks. Each state is restored once, and no daemon has to settle for it."""
    first = await daemons.first()
    await snapshots_of_all(first)
    await first.stop()
    daemons.settings = SpreadSettings(settle_seconds=600.0, enabled=enabled)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with capture_logs() as logs:
        b, c = await daemons.start("b"), await daemons.start("c")
        await restores_slowly(b)
        await restores_slowly(c)
        await until(lambda: len(b.led | c.led) == SHARDS, SHARDS * RESTORE_SECONDS + 20)

    left = [line["shard"] for line in logs if line["event"] == "term.left"]
    assert sorted(numbers(b, c)) == ([3, 3] if enabled else [0, 6])
    assert len(set(left)) == len(left) == (3 if enabled else 0)
    assert (loop.time() - began < 5 * RESTORE_SECONDS) == enabled
    assert all(line["after"] != "failed" for line in logs if line["event"] == "leadership.changed")


async def test_a_settled_daemon_that_queues_late_gets_its_shards(daemons: Daemons) -> None:
    """Only the queues change then: what the daemons register, their loads as well, has long been the same."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
    for shard in range(SHARDS):
        b.elections.withdraw(shard)
    await never(lambda: b.led, 120)

    for shard in range(SHARDS):
        b.elections.contend(shard)

    await until(lambda: numbers(a, b) == [3, 3])


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


async def test_without_contact_to_zookeeper_the_last_view_counts(daemons: Daemons) -> None:
    """Rule 1."""
    a = await daemons.first()
    await daemons.start("b")
    await until(lambda: a.spreader.view.records.keys() == {"a", "b"})
    await a.elections.set_maintenance("a", on=True, token="True")
    await until(lambda: a.spreader.view.maintenance == {"a"})

    daemons.cluster.zookeeper.stop()

    await never(lambda: len(a.spreader.view.records) < 2 or not a.spreader.view.maintenance, 30)


async def test_maintenance_empties_a_daemon_and_its_end_fills_it_again(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])

    await b.elections.set_maintenance("a", on=True, token="True")
    await until(lambda: numbers(a, b) == [0, 6], 10)
    await never(lambda: a.led, 60)
    await a.elections.set_maintenance("a", on=False, token="False")
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


async def test_a_stopping_daemon_transfers_its_shards_to_one_that_has_just_started(daemons: Daemons) -> None:
    """As in a rolling restart: the other daemon is not in its last view."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
    assert "b" not in a.spreader.view.records

    await a.spreader.evacuate()

    await until(lambda: len(b.led) == SHARDS, 0.2)
    await until(lambda: b.spreader.state_of("a") == "leaving")


async def test_a_stopping_daemon_tries_again_what_was_abandoned(daemons: Daemons) -> None:
    """Its successor has been restarted, for example."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: b.spreader.view.records.keys() == {"a", "b"} == a.spreader.view.records.keys())
    await b.elections.set_maintenance("a", on=True, token="True")
    b.store.freeze()
    await until(lambda: a.controller.transfer is not None)
    for shard in range(SHARDS):
        b.elections.withdraw(shard)
    await until(lambda: all(each.transfer is None for each in a.controllers))
    for shard in range(SHARDS):
        b.elections.contend(shard)
    b.store.thaw()
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
    assert len(a.led) == SHARDS

    await a.spreader.evacuate()

    await until(lambda: len(b.led) == SHARDS, 0.2)


async def test_a_stopping_daemon_waits_for_a_transfer_that_has_begun(daemons: Daemons) -> None:
    """The successor has not read the ledger yet."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
    b.store.freeze()
    transfers = [each.start_transfer("b", "maintenance") for each in a.controllers]
    stopping = asyncio.create_task(a.stop())
    await never(stopping.done, 1)
    b.store.thaw()

    assert [await each for each in transfers] == [None] * SHARDS
    await stopping


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

    assert EVACUATION_SECONDS <= asyncio.get_running_loop().time() - before < 20


async def test_a_stopping_daemon_tries_another_successor_for_what_a_silent_one_does_not_take(daemons: Daemons) -> None:
    """Each shard has a leader when the daemon ends, without an election."""
    a = await daemons.first()
    b, c = await daemons.start("b"), await daemons.start("c")
    await until(lambda: all(a.elections.queue(shard).waiting == {"b", "c"} for shard in range(SHARDS)))
    await until(lambda: a.spreader.view.records.keys() == {"a", "b", "c"})
    b.store.freeze()

    with capture_logs() as logs:
        await a.stop()

    assert any(line["event"] == "transfer.abandoned" and line["successor"] == "b" for line in logs)
    await until(lambda: len(c.led) == SHARDS, 0.2)


async def test_a_stopping_daemon_waits_ten_seconds_for_its_only_successor(daemons: Daemons) -> None:
    """As docs/operations/upgrade.md promises: it is tried again while there is time."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
    b.store.freeze()
    stopping = asyncio.create_task(a.stop())
    await never(stopping.done, EVACUATION_SECONDS - 2)
    b.store.thaw()

    await stopping

    await until(lambda: len(b.led) == SHARDS, 0.2)


async def test_a_stopping_daemon_stays_until_the_terms_of_its_successors_have_begun(daemons: Daemons) -> None:
    """No more than four shards wait for their new leaders at a time. If one fails, this daemon could still lead."""
    a, b = await daemons.first(), await daemons.start("b")
    await until(lambda: all(a.elections.queue(shard).waiting == {"b"} for shard in range(SHARDS)))
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


async def test_a_command_whose_successor_began_no_term_is_not_executed_again(daemons: Daemons) -> None:
    """Its client asks the leader that follows, which is the same daemon again."""
    a, b = await daemons.first(), await daemons.start("b")
    await until(lambda: a.elections.queue(0).waiting == {"b"} and "b" in a.spreader.view.records)
    accepted, b.store.create = b.store.create, refused  # type: ignore[method-assign]
    problem = await a.spreader.transfer(0, "b", "first")
    await until(lambda: 0 in a.led)
    b.store.create = accepted  # type: ignore[method-assign]

    assert problem is not None
    assert "daemon 'b' was ready" in problem
    assert await a.spreader.transfer(0, "b", "first") == problem
    assert 0 in a.led
    assert await a.spreader.transfer(0, "b", "second") is None


async def test_an_operator_moves_a_shard_which_then_stays(daemons: Daemons) -> None:
    """Another shard makes up for it."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])
    shard = min(a.led)

    assert await a.spreader.transfer(shard, "b", "token") is None
    await until(lambda: shard in b.led)
    await until(lambda: numbers(a, b) == [3, 3])

    await never(lambda: shard not in b.led, 60)


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
    await a.elections.set_maintenance("a", on=True, token="True")
    await until(lambda: a.spreader.view.maintenance)
    assert await a.spreader.transfer(2, "a", "token") == "daemon 'a' is in maintenance: headgate daemon drain a --off"


async def test_a_busy_shard_counts_as_several(daemons: Daemons) -> None:
    """Two daemons with six shards, of which the first one is busy: it leaves its daemon with few others."""
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])
    busy = {0: 200e6, 1: 1e6, 2: 1e6, 3: 1e6, 4: 1e6, 5: 1e6}

    await serve([a, b], busy, 150)

    one, other = (a, b) if 0 in a.led else (b, a)
    assert numbers(one, other) == [2, 4]
    spread = [a.led, b.led]
    assert a.spreader.plan.moves == b.spreader.plan.moves == ()
    registered = {name: dict(record.loads) for name, record in a.spreader.view.records.items()}
    # A change by a tenth writes nothing and moves no shard.
    await serve([a, b], {shard: load * 1.1 for shard, load in busy.items()}, 100)
    assert registered == {name: dict(record.loads) for name, record in a.spreader.view.records.items()}
    assert spread == [a.led, b.led]
    # Another one that becomes busy makes up for it.
    await serve([a, b], busy | {min(other.led): 300e6}, 300)
    await until(lambda: numbers(a, b) == [3, 3], 30)
    reported = [each.registry.get_sample_value("headgate_shard_loads_reported_total") for each in (a, b)]
    assert sum(reported) < 20, "six first loads, those of the moved shards, and some of two that rise"


async def test_a_load_outlives_its_daemon(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])
    shard = min(a.led)
    await serve([a, b], {shard: 100e6}, 60)
    load = a.spreader.view.records["a"].loads[shard]

    daemons.cluster.zookeeper.partition("a")
    await until(lambda: len(b.led) == SHARDS)

    await until(lambda: b.spreader.view.records["b"].loads.get(shard) == load, 10)
    assert b.registry.get_sample_value("headgate_shard_load_bytes_per_second", {"shard": str(shard)}) == load


async def serve(contenders: Sequence[Contender], loads: Mapping[int, float], seconds: float) -> None:
    """Let the leaders receive so many bytes per second."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        for controller in (each for contender in contenders for each in contender.controllers):
            if controller.leader is not None:
                controller.leader.arrived_cost += round(loads.get(controller.shard, 0))
        await asyncio.sleep(1)


async def test_a_transfer_to_a_daemon_that_cannot_take_the_shard_is_refused(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: a.elections.queue(0).waiting == {"b"} and "b" in a.spreader.view.records)

    assert await a.spreader.transfer(0, "x", "token") == "no daemon 'x' is live: headgate daemon list"
    b.elections.withdraw(0)
    await until(lambda: not a.elections.queue(0).waiting)
    assert await a.spreader.transfer(0, "b", "token") == "daemon 'b' does not contend for shard 0: see its log"
    assert await a.spreader.set_maintenance("x", on=True, token="True") == "no daemon 'x' is live: headgate daemon list"
    assert await a.spreader.set_maintenance("x", on=False, token="False") is None
    assert await a.spreader.set_maintenance("b", on=True, token="True") is None
    await until(lambda: a.spreader.view.maintenance)
    await until(lambda: b.spreader.state == "maintenance")
    assert await a.spreader.transfer(0, "b", "token") == "daemon 'b' is in maintenance: headgate daemon drain b --off"


async def test_a_transfer_waits_for_a_daemon_that_queues_again(daemons: Daemons) -> None:
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: a.elections.queue(0).waiting == {"b"} and "b" in a.spreader.view.records)
    b.elections.withdraw(0)
    await until(lambda: not a.elections.queue(0).waiting)
    transfer = asyncio.create_task(a.spreader.transfer(0, "b", "token"))
    await asyncio.sleep(CONTEND_SECONDS / 2)
    b.elections.contend(0)

    assert await transfer is None
    await until(lambda: 0 in b.led)


async def test_a_daemon_knows_from_zookeeper_what_the_spread_may_do_with_another(daemons: Daemons) -> None:
    daemons.settings = SpreadSettings(settle_seconds=20)
    a = await daemons.first()
    await daemons.start("b")

    await until(lambda: a.spreader.state_of("b") == "settling")
    await until(lambda: a.spreader.state_of("b") == "settled", 20 + 2 * VIEW_INTERVAL_SECONDS)
    await a.spreader.set_maintenance("b", on=True, token="True")
    await until(lambda: a.spreader.state_of("b") == "maintenance")
    assert a.spreader.state_of("x") is None


async def test_shards_are_not_spread_if_the_setting_is_off(daemons: Daemons) -> None:
    daemons.settings = SpreadSettings(enabled=False, settle_seconds=0)
    a = await daemons.first()
    b = await daemons.start("b")

    await never(lambda: b.led, 100)
    # Maintenance works nevertheless.
    await a.elections.set_maintenance("a", on=True, token="True")
    await until(lambda: numbers(a, b) == [0, 6])


async def test_the_shards_of_a_daemon_that_loses_the_broker_move_to_one_that_reaches_it(daemons: Daemons) -> None:
    """Long before its terms end by themselves. When it reaches the broker again, it gets its share."""
    daemons.unreachable_seconds, daemons.settings = 600, SpreadSettings(settle_seconds=1)
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])

    daemons.cluster.broker.cut("daemon-a")
    await until(lambda: numbers(a, b) == [0, 6], BROKER_LOST_SECONDS + VIEW_INTERVAL_SECONDS + 1)
    await until(lambda: b.spreader.state_of("a") == "no_broker")
    assert await b.spreader.transfer(0, "a", "token") == "daemon 'a' does not reach the broker: see its log"

    daemons.cluster.broker.heal("daemon-a")
    await never(lambda: a.led, STABLE_SECONDS - 1)
    await until(lambda: a.led)


async def refused(path: str, data: bytes) -> None:
    raise StoreUnavailableError(f"{path}: the bucket refuses writes")


async def test_the_shards_of_a_daemon_whose_store_refuses_writes_move_to_one_whose_store_accepts_them(
    daemons: Daemons,
) -> None:
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


async def test_a_daemon_whose_store_hangs_before_its_terms_leaves_them_to_others(daemons: Daemons) -> None:
    """It held the locks for as long as the store hung, and the shards had no leader."""
    a = await daemons.start("a")
    a.store.freeze()
    daemons.try_writes(a)
    await until(lambda: all(each.leadership.role is Role.CATCHING_UP for each in a.controllers))
    b = await daemons.start("b")

    await until(lambda: len(b.led) == SHARDS, STORE_LOST_SECONDS + 30)


async def test_nothing_moves_while_the_store_refuses_the_writes_of_all(daemons: Daemons) -> None:
    """One daemon may notice it half a minute before the others try a write by themselves."""
    daemons.unreachable_seconds, daemons.settings = 600, SpreadSettings(settle_seconds=1)
    a, b = await daemons.two()
    led = a.led, b.led
    daemons.try_writes(b)
    await until(lambda: b.store.calls["delete"])

    accepted = a.store.create, b.store.create
    a.store.create = b.store.create = refused  # type: ignore[method-assign]
    daemons.try_writes(a)
    await never(lambda: (a.led, b.led) != led, STORE_LOST_SECONDS + 60)
    a.store.create, b.store.create = accepted  # type: ignore[method-assign]
    await never(lambda: (a.led, b.led) != led, 30)


async def test_nothing_moves_while_the_broker_is_restarted(daemons: Daemons) -> None:
    """Daemons lose it at once, and reach it again one after the other."""
    daemons.unreachable_seconds, daemons.settings = 600, SpreadSettings(settle_seconds=1)
    a = await daemons.first()
    b = await daemons.start("b")
    await until(lambda: numbers(a, b) == [3, 3])
    led = a.led, b.led

    daemons.cluster.broker.cut("daemon-a")
    daemons.cluster.broker.stop()
    await never(lambda: (a.led, b.led) != led, 5)
    daemons.cluster.broker.start()
    await never(lambda: (a.led, b.led) != led, STABLE_SECONDS - 1)
    daemons.cluster.broker.heal("daemon-a")
    await never(lambda: (a.led, b.led) != led, 10)


async def test_a_daemon_registers_that_it_has_settled(daemons: Daemons) -> None:
    a = await daemons.start("a")
    await until(lambda: "a" in a.spreader.view.records)
    assert not a.spreader.view.records["a"].settled

    await until(lambda: a.spreader.view.records["a"].settled)

    data = (await a.elections.instances())["a"]
    assert (read_record(data).version, read_record(data).settled) == ("1", True)


async def test_daemons_that_start_together_spread_their_shards_at_once(daemons: Daemons) -> None:
    """Without the pace, and with topics too."""
    a = await daemons.first()
    for controller in a.controllers:
        assert controller.leader is not None
        topic = next(name for name in map(str, range(100)) if shard_of(name, SHARDS) == controller.shard)
        controller.leader.commit.propose(e.TopicCreated(topic_id=1, topic=topic, segments=4, token="t"))
        await controller.leader.commit.flush()
    b, c = await daemons.start("b"), await daemons.start("c")

    await until(lambda: numbers(a, b, c) == [2, 2, 2], SETTLE_SECONDS + 2 * VIEW_INTERVAL_SECONDS)
