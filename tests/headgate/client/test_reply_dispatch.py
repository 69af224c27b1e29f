"""Each message of the leaders reaches who waits for it, and no one else."""

import msgspec
import pytest

from headgate.client.request_attempts import ReplyDispatch, body_of
from headgate.errors import ProtocolError
from headgate.protocol import codec
from headgate.protocol.codec import split_message
from headgate.protocol.replies import ConsumerFenced, MessagePart, Push, Registered, Rejected, Reply


@pytest.fixture
def undecodable() -> list[tuple[str, msgspec.DecodeError]]:
    return []


@pytest.fixture
def dispatch(undecodable) -> ReplyDispatch:
    return ReplyDispatch(lambda kind, error: undecodable.append((kind, error)), lambda _: None)


def reply(request_id: int) -> Reply:
    return Reply(request_id=request_id, leader_epoch=1, body=Rejected(verdict="invalid", reason="no"))


def test_a_reply_reaches_its_request_until_it_is_forgotten(dispatch):
    received: list[Reply] = []
    dispatch.expect(7, received.append)
    for request_id in (7, 8, 7):
        dispatch.dispatch(reply(request_id))
    dispatch.forget(7)
    dispatch.dispatch(reply(7))
    assert [reply(7)] * 2 == received


def test_a_push_reaches_its_consumer_until_it_is_forgotten(dispatch):
    push = ConsumerFenced(topic="t", subscription="s", consumer="c", incarnation=1, leader_epoch=1, reason="newer")
    received: list[Push] = []
    dispatch.expect_pushes(("t", "s", "c"), received.append)
    dispatch.dispatch(push)
    dispatch.dispatch(msgspec.structs.replace(push, consumer="d"))
    dispatch.forget_pushes(("t", "s", "c"))
    dispatch.dispatch(push)
    assert [push] == received


def parts(payload: bytes) -> list[MessagePart]:
    return list(split_message(payload, shard=0, leader_epoch=1, number=1))


def test_a_reply_in_parts_is_handed_over_once_it_is_complete(dispatch):
    received: list[Reply] = []
    dispatch.expect(7, received.append)
    large = msgspec.structs.replace(reply(7), body=Rejected(verdict="invalid", reason="x" * 1_000_000))
    for part in parts(codec.encode(large)):
        assert [] == received
        dispatch.dispatch(part)
    assert [large] == received


def test_parts_that_make_no_message_are_reported_and_ignored(dispatch, undecodable):
    for part in parts(b"\xc1"):
        dispatch.dispatch(part)
    assert ["parts"] == [kind for kind, _ in undecodable]


def test_a_reply_of_another_kind_is_an_error_that_names_both_kinds_and_the_sender():
    assert body_of(reply(7), Rejected, "the leader of shard 0") == reply(7).body
    with pytest.raises(ProtocolError, match="the leader of shard 0 answered Rejected instead of Registered"):
        body_of(reply(7), Registered, "the leader of shard 0")
