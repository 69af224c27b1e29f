"""Requests of operators to a leader: each reply, and which limits apply."""

import asyncio

import pytest

from controller.leader.operator_commands import OperatorCommands
from headgate.protocol import messages as m
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

    async def set_maintenance(self, daemon: str, *, on: bool, token: str) -> str | None:
        self.calls.append(("maintenance", daemon, on, token))
        return await asyncio.shield(self.outcome)


MOVE = m.TransferShard(daemon="b", token="t")
MAINTAIN = m.SetMaintenance(daemon="b", on=True, token="t")


def respond(commands: OperatorCommands, request: m.RequestBody, replies: list[object]) -> object:
    """Handle ``request``; a later reply is appended to ``replies``."""
    respond_to = dict(commands.handlers())[type(request)]
    outcome = respond_to(m.Request(request_id=1, protocol=m.PROTOCOL_VERSION, client_id="c", body=request), None)
    if isinstance(outcome, Deferred):
        answered = asyncio.ensure_future(outcome.work())
        answered.add_done_callback(lambda done: replies.append(done.result()))
    return outcome


@pytest.mark.looptime
async def test_the_daemon_that_leads_the_shard_keeps_it_and_confirms_it() -> None:
    """The client repeats its request to the new leader, which is how it learns of the success."""
    for problem in ("daemon 'b' is in maintenance", None):
        daemon, replies = Daemon(), []
        respond(OperatorCommands(3, "b", daemon), MOVE, replies)
        daemon.outcome.set_result(problem)
        await until(lambda replies=replies: replies)

        assert daemon.calls == [("transfer", 3, "b")]
        assert replies == [m.Done() if problem is None else Refusal("invalid", problem)]


@pytest.mark.looptime
async def test_a_transfer_is_refused_with_the_reason_and_not_answered_if_it_succeeds() -> None:
    for problem in ("daemon 'b' is frozen", None):
        daemon, replies = Daemon(), []
        respond(OperatorCommands(3, "a", daemon), MOVE, replies)
        await until(lambda daemon=daemon: daemon.calls == [("transfer", 3, "b")])
        daemon.outcome.set_result(problem)
        await until(lambda replies=replies: replies)

        assert replies == [None if problem is None else Refusal("invalid", problem)]


@pytest.mark.looptime
async def test_maintenance_is_answered_once_it_is_stored() -> None:
    for problem in ("no daemon 'b' is live", None):
        daemon, replies = Daemon(), []
        respond(OperatorCommands(3, "a", daemon), MAINTAIN, replies)
        await until(lambda daemon=daemon: daemon.calls == [("maintenance", "b", True, "t")])
        assert replies == []
        daemon.outcome.set_result(problem)
        await until(lambda replies=replies: replies)

        assert replies == [m.Done() if problem is None else Refusal("invalid", problem)]


@pytest.mark.looptime
async def test_a_leader_without_a_daemon_refuses_for_now() -> None:
    refused = respond(OperatorCommands(3, "a", None), MOVE, [])

    assert isinstance(refused, Refusal)
    assert refused.verdict == "unavailable"


@pytest.mark.looptime
async def test_a_client_receives_a_refusal_that_is_decided_later() -> None:
    shard = OneShard()
    async with shard.leader(), shard.client() as client:
        refused = await client.call(m.TransferShard, daemon="b", token="t")

    assert isinstance(refused, m.Rejected), refused
    assert (refused.verdict, refused.reason) == ("invalid", "no daemon 'b' is live, to lead shard 0")
