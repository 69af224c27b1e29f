"""More shards: what a command makes of the list, and how a daemon follows it."""

import asyncio

import pytest

from controller.leader.daemon_shards import ShardGrowth, grown
from headgate.errors import HeadgateError
from headgate.model.layout import ShardMap
from tests.support.fakes.zookeeper import FakeZooKeeper
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("known", "shards", "before", "expected"),
    [
        (4, 16, 4, [4, 16]),
        ([4, 16], 64, 16, [4, 16, 64]),
        ([4, 16], 16, 4, None),
        ([4, 16, 64], 16, 4, "the cluster has 64 shards by now, and not 4: look again"),
        ([4, 16], 8, 4, "the cluster has 16 shards by now, and not 4: look again"),
        ([4, 16], 16, 16, "the cluster has 16 shards, and the number can only rise"),
        ([4, 16], 15, 16, "the cluster has 16 shards, and the number can only rise"),
    ],
)
def test_the_number_rises_from_the_one_that_the_operator_knows(
    known: object, shards: int, before: int, expected: object
) -> None:
    config = {"shards": known, "level": 2}
    if isinstance(expected, str):
        with pytest.raises(HeadgateError, match=expected):
            grown(config, shards, before)
    else:
        assert grown(config, shards, before) == (None if expected is None else {"shards": expected, "level": 2})
    with pytest.raises(HeadgateError, match="needs level 2: headgate cluster upgrade"):
        grown({"shards": 4, "level": 1}, 16, 4)


class Following(list[int]):
    """A daemon that notes for which shards it has controllers."""

    leader = None

    def __init__(self, service: FakeZooKeeper, name: str, shards: ShardMap) -> None:
        super().__init__()
        self.elections = service.elections(name, lambda _: None)
        self.described: list[ShardMap] = []
        self.growth = ShardGrowth(shards, self.elections.registry, lambda: self.described.append(self.growth.shards))
        self.growth.create(lambda _: self)
        self.growth.start(lambda _: self.append(len(self)))


async def test_a_list_of_a_ledger_repairs_zookeeper_and_all_daemons_follow() -> None:
    """A new cluster on a copy of a ledger begins with the last number alone."""
    service = FakeZooKeeper()
    service.service_state.config = {"shards": 5}
    first, second = Following(service, "a", ShardMap((5,))), Following(service, "b", ShardMap((5,)))
    async with first.elections, second.elections:
        first.growth.grow(ShardMap((2, 5)))
        tasks = [asyncio.create_task(each.growth.run()) for each in (first, second)]
        await until(lambda: second.described)
        service.service_state.config["shards"] = [2, 5, 7]
        await until(lambda: second[5:])
        for task in tasks:
            task.cancel()

    assert second.described == [ShardMap((2, 5)), ShardMap((2, 5, 7))]
    assert second == [0, 1, 2, 3, 4, 5, 6]
