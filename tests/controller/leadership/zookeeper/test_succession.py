"""What is decided between two answers of ZooKeeper. The contract suite has the rest, with a real one."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest
from kazoo.exceptions import BadVersionError, ConnectionLoss
from kazoo.protocol.states import KazooState

from controller.leadership.election import ElectionEvent, LockEvent, Lost
from controller.leadership.policy.queue_order import QueueOrder
from controller.leadership.policy.transitions import Event
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.leadership.zookeeper.succession import Contender, Grant, Successor, ZooKeeperSuccession
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


@pytest.mark.parametrize(("confirmed", "reported"), [(b"", 0), (b"6", 0), (b"7", 1)])
async def test_a_successor_is_prepared_if_it_confirms_this_nomination_which_is_reported_once(
    confirmed, reported
) -> None:
    contender, on_event = Contender(0, "/q", "a-", asyncio.Event(), Mock()), Mock()
    contender.wishes.successor = Successor("b", "b-1", version=7)
    succession = ZooKeeperSuccession(AsyncMock(call=AsyncMock(return_value=(confirmed, None))), on_event)
    for _ in range(2):
        await succession.nominate(contender, "a-0", ["a-0", "b-1"])
    assert [call(LockEvent(0, Event.SUCCESSOR_READY))] * reported == on_event.mock_calls


async def test_a_lock_is_passed_on_only_in_the_order_of_its_nomination() -> None:
    """Another client may have changed the order since: an operator, or the one that has the lock by now."""
    write = AsyncMock(side_effect=BadVersionError)
    await ZooKeeperSuccession(AsyncMock(call=write), Mock()).write_grant("/q", Grant(QueueOrder(first="b-1"), 7, 0))
    assert [7] == [each.kwargs["version"] for each in write.mock_calls]


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
