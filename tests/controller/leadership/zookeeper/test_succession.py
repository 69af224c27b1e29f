"""What is decided between two answers of ZooKeeper. The contract suite has the rest, with a real one."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

from controller.leadership.zookeeper.succession import Contender, Successor, ZooKeeperSuccession


async def test_a_successor_is_not_reported_once_another_one_is_wanted() -> None:
    contender, reported = Contender(0, "/q", "a-", asyncio.Event(), Mock()), Mock()
    contender.wishes.successor = Successor("b", "b-1", version=7)

    async def answer(*_: Any, **__: Any) -> tuple[bytes, None]:
        contender.wishes.successor = Successor("c")
        return b"7", None

    await ZooKeeperSuccession(AsyncMock(call=answer), reported).nominate(contender, "a-0", ["a-0", "b-1", "c-2"])
    reported.assert_not_called()
