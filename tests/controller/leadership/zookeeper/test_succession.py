"""What is decided between two answers of ZooKeeper. The contract suite has the rest, with a real one."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState

from controller.leadership.election import ElectionEvent, Lost
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.leadership.zookeeper.succession import Contender, Successor, ZooKeeperSuccession
from headgate.process.background import end_tasks
from tests.support.waiting import until


async def test_a_successor_is_not_reported_once_another_one_is_wanted() -> None:
    contender, reported = Contender(0, "/q", "a-", asyncio.Event(), Mock()), Mock()
    contender.wishes.successor = Successor("b", "b-1", version=7)

    async def answer(*_: Any, **__: Any) -> tuple[bytes, None]:
        contender.wishes.successor = Successor("c")
        return b"7", None

    await ZooKeeperSuccession(AsyncMock(call=answer), reported).nominate(contender, "a-0", ["a-0", "b-1", "c-2"])
    reported.assert_not_called()


async def test_no_lock_is_reported_of_a_session_that_has_ended_meanwhile() -> None:
    """A leader would not yield to the daemon that has the lock by now."""
    happened: list[ElectionEvent] = []
    elections = ZooKeeperElections("zk:1", root="/c", instance="a", session_timeout_seconds=3, on_event=happened.append)
    contender = Contender(0, "/c/shards/0000", "a-00000000-", asyncio.Event(), Mock())
    contender.wishes.keeps, stat = True, Mock(ephemeralOwner=1)

    async def answer(operation: str, *_: Any, **__: Any) -> Any:
        if operation == "set":
            elections._on_state(KazooState.LOST)
        return {"get": (b"", stat), "get_children": ["a-00000000-0000000001"]}.get(operation, stat)

    elections._connection.call = answer  # type: ignore[method-assign]
    elections._contact.exists.set()
    with pytest.raises(ConnectionLoss):
        await elections._reconcile_queue(contender)
    assert [Lost()] == happened


async def test_a_queue_that_is_left_slowly_delays_no_other() -> None:
    """A daemon that ends leaves all queues, and each lock that it passes on has no leader until then."""
    elections = ZooKeeperElections("zk:1", root="/c", instance="a", session_timeout_seconds=3, on_event=Mock())
    deleted: list[str] = []

    async def answer(operation: str, path: str, *_: Any, **__: Any) -> list[str]:
        if path == "/c/shards/0000":
            await asyncio.Event().wait()
        if operation == "delete":
            deleted.append(path)
        return ["a-00000000-0000000001"]

    elections._connection.call = answer  # type: ignore[method-assign]
    elections._contact.exists.set()
    for shard in range(2):
        task = asyncio.create_task(asyncio.sleep(0))
        contender = Contender(shard, f"/c/shards/000{shard}", "a-00000000-", asyncio.Event(), Mock(), task)
        elections._contenders[shard] = contender
        elections.withdraw(shard)
    await until(lambda: deleted == ["/c/shards/0001/a-00000000-0000000001"])
    await end_tasks(*elections._tasks)
