"""Requests of operators to a leader: each reply, and which limits apply."""

import asyncio

import pytest

from controller.leader.operator_commands import OperatorCommands
from headgate.protocol.replies import Done, Rejected
from headgate.protocol.request_fields import PROTOCOL_VERSION, RequestBody
from headgate.protocol.requests import RaiseLevel, Request, SetMaintenance, TransferShard
from shard.requests.handlers import Deferred
from shard.subscriptions.refusal import Refusal
from tests.support.waiting import until
from tests.support.worlds.one_shard import OneShard


class Daemon:
    """Operations whose outcome the test decides."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def transfer(self, shard: int, daemon: str, token: str) -> str | None:
        self.calls.append(("transfer", shard, daemon))
        return await asyncio.shield(self.outcome)

    async def raise_level(self, level: int) -> str | None:
        self.calls.append(("level", level))
        return await asyncio.shield(self.outcome)

    async def set_maintenance(self, daemon: str, *, on: bool, token: str) -> str | None:
        self.calls.append(("maintenance", daemon, on, token))
        return await asyncio.shield(self.outcome)


MOVE = TransferShard(daemon="b", token="t")
MAINTAIN = SetMaintenance(daemon="b", on=True, token="t")


def respond(commands: OperatorCommands, request: RequestBody, replies: list[object]) -> object:
    """Handle ``request``; a later reply is appended to ``replies``."""
    respond_to = dict(commands.handlers())[type(request)]
    outcome = respond_to(Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="c", body=request), None)
    if isinstance(outcome, Deferred):
        answered = asyncio.ensure_future(outcome.work())
        answered.add_done_callback(lambda done: replies.append(done.result()))
    return outcome


@pytest.mark.looptime
@pytest.mark.parametrize("problem", ["daemon 'b' is frozen", None], ids=["refused", "done"])
@pytest.mark.parametrize(
    ("asked", "request_of", "call", "reply"),
    [
        pytest.param("b", MOVE, ("transfer", 3, "b"), Done(), id="a shard that the daemon leads is kept"),
        pytest.param("a", MOVE, ("transfer", 3, "b"), None, id="the client asks the new leader after a transfer"),
        pytest.param("a", MAINTAIN, ("maintenance", "b", True, "t"), Done(), id="maintenance"),
        pytest.param("a", RaiseLevel(level=2, token="t"), ("level", 2), Done(), id="feature level"),
    ],
)
async def test_a_command_is_answered_once_it_is_done_or_refused_with_the_reason(
    problem: str | None, asked: str, request_of: RequestBody, call: tuple[object, ...], reply: Done | None
) -> None:
    daemon, replies = Daemon(), []
    respond(OperatorCommands(3, asked, daemon), request_of, replies)
    await until(lambda: daemon.calls == [call])
    assert replies == []

    daemon.outcome.set_result(problem)
    await until(lambda: replies)

    assert replies == [reply if problem is None else Refusal("invalid", problem)]


@pytest.mark.looptime
async def test_a_leader_without_a_daemon_refuses_for_now() -> None:
    refused = respond(OperatorCommands(3, "a", None), MOVE, [])

    assert refused.verdict == "unavailable"


@pytest.mark.looptime
async def test_a_client_receives_a_refusal_that_is_decided_later() -> None:
    shard = OneShard()
    async with shard.leader(), shard.client() as client:
        refused = await client.call(TransferShard, daemon="b", token="t")

    assert isinstance(refused, Rejected), refused
    assert (refused.verdict, refused.reason) == ("invalid", "no daemon 'b' is live, to lead shard 0")
