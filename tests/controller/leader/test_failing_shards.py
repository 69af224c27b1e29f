"""Shards that fail on their own, with the real parts of two daemons on fake servers: the other shards do not notice."""

import asyncio
from collections.abc import Sequence

import pytest

from controller.leadership.policy.transitions import Role
from headgate.ledger.objects import chunk_folder, chunk_path
from tests.support.fakes.object_store import FakeStore, Fault, Operation
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender

pytestmark = pytest.mark.looptime

HANGING = range(4)
"""As many as states may be read at a time."""
HEALTHY = (4, 5)
DAMAGED = 6
ERRORS = 7
SHARDS = 8


class PartlyBrokenStore(FakeStore):
    """The objects of some shards cannot be reached, or their requests hang."""

    broken = False

    async def _begin(self, operation: Operation, path: str) -> Fault | None:
        shard = int(path.split("shard=")[1][:4]) if "shard=" in path else None
        if self.broken and shard in HANGING:
            await asyncio.get_running_loop().create_future()
        if self.broken and shard == ERRORS:
            self.fail_next("unavailable", operation)
        return await super()._begin(operation, path)


def contender(cluster: Cluster, name: str) -> Contender:
    return Contender(cluster, name, PartlyBrokenStore, shards=SHARDS, contends_for=SHARDS)


def break_shards(cluster: Cluster, *contenders: Contender) -> tuple[str, bytes]:
    """Break six shards of eight; return the path and the content of the object that is damaged."""
    for each in contenders:
        each.store.broken = True
    path = max(path for path in cluster.objects if path.startswith(chunk_folder(DAMAGED)))
    intact = cluster.objects[path]
    cluster.objects[path] = intact[:40] + bytes([intact[40] ^ 1]) + intact[41:]
    return path, intact


async def longest_commit_seconds(contenders: Sequence[Contender], seconds: float) -> float:
    """Commit to the healthy shards all the time, and return how long one commit took at most."""
    loop = asyncio.get_running_loop()
    end, longest = loop.time() + seconds, 0.0
    while loop.time() < end:
        for shard in HEALTHY:
            (leader,) = [each.controllers[shard].leader for each in contenders if shard in each.led]
            began, durable = loop.time(), asyncio.Event()
            leader.commit.when_durable(leader.commit.barrier(), durable.set)
            await durable.wait()
            longest = max(longest, loop.time() - began)
        await asyncio.sleep(0.05)
    return longest


async def test_shards_that_fail_while_they_are_led_leave_the_others_alone() -> None:
    cluster = Cluster()
    async with contender(cluster, "a").running() as a, contender(cluster, "b").running() as b:
        await until(lambda: len(a.led | b.led) == SHARDS)
        usual = await longest_commit_seconds([a, b], 5)
        break_shards(cluster, a, b)
        for each in (a, b):
            for shard in each.led - set(HEALTHY):
                each.controllers[shard].leader.commit.barrier()
        before = a.led & set(HEALTHY), b.led & set(HEALTHY)

        assert await longest_commit_seconds([a, b], 20) < 2 * usual

        assert before == (a.led & set(HEALTHY), b.led & set(HEALTHY))
        await until(lambda: ERRORS not in a.led | b.led)


async def test_an_endless_object_as_the_next_chunk_fails_only_its_shard() -> None:
    cluster = Cluster()
    daemon = contender(cluster, "a")
    async with daemon.running():
        await until(lambda: len(daemon.led) == SHARDS)
        before = {each.shard: each.term.ended for each in daemon.controllers}
        leader = daemon.controllers[DAMAGED].leader
        path = chunk_path(DAMAGED, leader.commit.durable + 1)
        daemon.store.endless.add(path)
        leader.commit.barrier()
        await until(lambda: daemon.controllers[DAMAGED].leadership.role is Role.FAILED)
        fault = daemon.controllers[DAMAGED].follower.fault

        daemon.store.endless.clear()
        await until(lambda: len(daemon.led) == SHARDS, 120)

    assert fault.startswith(f"{path} is not a regular file")
    ended = {each.shard for each in daemon.controllers if each.term.ended > before[each.shard]}
    assert {DAMAGED} == ended


async def test_an_idle_leader_notices_an_endless_object_as_the_next_chunk() -> None:
    cluster = Cluster()
    daemon = contender(cluster, "a")
    async with daemon.running():
        await until(lambda: len(daemon.led) == SHARDS)
        daemon.store.endless.add(chunk_path(DAMAGED, 2))
        await until(lambda: daemon.controllers[DAMAGED].leadership.role is Role.FAILED, 60)
        assert set(range(SHARDS)) - {DAMAGED} == daemon.led
