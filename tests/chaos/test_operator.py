"""What the operator of a run does, and that it leaves no daemon in maintenance. In virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from chaos.cluster import DAEMONS, ORDERS, SHARDS
from chaos.operator import Operator
from headgate.errors import NoLeaderError
from headgate.model.hashing import shard_of
from headgate.process.background import cancel_and_wait

pytestmark = pytest.mark.looptime


@dataclass
class Segment:
    segment: int
    first_hash: int
    last_hash: int
    state: str = "active"
    next_offset: int = 0


@dataclass
class Topic:
    segments: list[Segment]


class FakeAdmin:
    """One leader for all topics, which executes what it is asked, and a layout of one segment that splits."""

    def __init__(self) -> None:
        self.leader = DAEMONS[0]
        self.maintenance: set[str] = set()
        self.drained: list[str] = []
        self.transfers: list[tuple[int, str]] = []
        self.answers = True
        self.segments = 1

    async def leader_of(self, topic: str) -> str:
        return self.leader

    async def transfer_shard(self, shard: int, daemon: str) -> None:
        assert daemon != self.leader
        self.transfers.append((shard, daemon))
        self.leader = daemon

    async def set_maintenance(self, daemon: str, *, on: bool) -> None:
        if not self.answers:
            raise NoLeaderError("no leader")
        if on:
            assert not self.maintenance, "one daemon at a time"
            self.maintenance.add(daemon)
            self.drained.append(daemon)
        else:
            self.maintenance.remove(daemon)

    async def describe_topic(self, topic: str) -> Topic:
        width = 65_536 // self.segments
        numbers = range(self.segments)
        return Topic([Segment(100 * self.segments + n, n * width, (n + 1) * width - 1) for n in numbers])

    async def split(self, topic: str, segment: int) -> Topic:
        self.segments += 1
        return await self.describe_topic(topic)

    async def merge(self, topic: str, low: int, high: int) -> Topic:
        self.segments -= 1
        return await self.describe_topic(topic)


async def worked(admin: FakeAdmin, seconds: float, **options: bool) -> Operator:
    operator = Operator(admin, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(operator.run())
    await asyncio.sleep(seconds)
    await cancel_and_wait(task)
    return operator


async def test_shards_of_all_topics_are_transferred_and_all_daemons_drained_in_turn() -> None:
    admin = FakeAdmin()
    await worked(admin, 150)

    assert {shard for shard, _ in admin.transfers} == set(range(SHARDS))
    assert admin.drained[:4] == [*DAEMONS, DAEMONS[0]]


async def test_a_drain_is_ended_before_the_next_one_however_long_that_fails() -> None:
    admin = FakeAdmin()
    operator = Operator(admin)  # type: ignore[arg-type]
    draining = asyncio.create_task(operator.drain(DAEMONS[1]))
    await asyncio.sleep(1)
    assert admin.maintenance == {DAEMONS[1]}
    admin.answers = False
    await draining
    await operator.drain(DAEMONS[2])
    assert admin.maintenance == {DAEMONS[1]}
    admin.answers = True

    await operator.drain(DAEMONS[2])
    assert (admin.drained, admin.maintenance) == ([DAEMONS[1], DAEMONS[2]], set())
    failed = [each.name for each in operator.operations if each.error]
    assert failed == ["daemon drain --off", "daemon drain --off"]


async def test_children_are_noted_when_their_command_has_succeeded() -> None:
    operator = await worked(FakeAdmin(), 13)

    assert [each.name for each in operator.operations if each.name in {"split", "merge"}] == ["split"]
    assert set(operator.children) == {200, 201}


async def test_without_spark_the_layout_stays_as_it_is() -> None:
    """Children could never open."""
    operator = await worked(FakeAdmin(), 60, changes_layout=False)

    assert not {"split", "merge"} & {each.name for each in operator.operations}
    assert operator.operations


def test_the_topics_are_on_shards_of_their_own() -> None:
    assert shard_of(ORDERS, SHARDS) == 0
