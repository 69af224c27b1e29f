"""Producer identities: openings, repetitions and fencing."""

from typing import Any

import pytest

from controller.decisions.producer_commands import LAST_PRODUCER_EPOCH, open_producer
from controller.state.producers import MAX_EARLIER_TOKENS
from coordinator.decisions.refusal import Refusal
from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.command_shard import CommandShard


class Shard(CommandShard):
    """Opens producers."""

    def open(self, token: str, **kwargs: Any) -> tuple[int, int]:
        reply = self.do(open_producer(m.OpenProducer(token=token, **kwargs), self.state))
        assert isinstance(reply, m.ProducerIdentity)
        return reply.producer_id, reply.producer_epoch

    def exhaust(self, token: str, name: str | None = None) -> None:
        """Open producer 1 at its last epoch."""
        self.apply(e.ProducerOpened(producer_id=1, producer_epoch=LAST_PRODUCER_EPOCH, token=token, name=name))

    def rejected(self, token: str, **kwargs: Any) -> str:
        outcome = open_producer(m.OpenProducer(token=token, **kwargs), self.state)
        assert isinstance(outcome, Refusal)
        assert outcome.after_barrier
        return outcome.verdict


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_an_anonymous_producer_gets_its_own_id(shard: Shard) -> None:
    assert (1, 0) == shard.open("a")
    assert (2, 0) == shard.open("b")


def test_a_repeated_open_request_gets_the_same_reply(shard: Shard) -> None:
    """A lost reply must use up neither an identity nor an epoch."""
    assert shard.open("a") == shard.open("a", producer_id=1, producer_epoch=0)
    assert (1, 1) == shard.open("b", producer_id=1, producer_epoch=0)
    assert (1, 1) == shard.open("b", producer_id=1, producer_epoch=0)


def test_a_stale_producer_that_requests_the_next_epoch_is_fenced(shard: Shard) -> None:
    """Its epoch is no longer the current one."""
    shard.open("a")
    shard.open("b", producer_id=1, producer_epoch=0)

    assert "fenced" == shard.rejected("c", producer_id=1, producer_epoch=0)


def test_opening_a_name_again_fences_the_previous_incarnation(shard: Shard) -> None:
    assert (1, 0) == shard.open("a", name="loader")
    assert (1, 1) == shard.open("b", name="loader")
    assert "fenced" == shard.rejected("c", name="loader", producer_id=1, producer_epoch=0)


def test_a_delayed_copy_of_an_open_request_does_not_fence_a_later_incarnation(shard: Shard) -> None:
    """The present incarnation keeps its epoch; the copy is fenced."""
    for epoch, token in enumerate("abc"):
        assert (1, epoch) == shard.open(token, name="loader")

    assert ["fenced", "fenced"] == [shard.rejected(token, name="loader") for token in "ab"]
    assert (1, 2) == shard.open("c", name="loader")


def test_the_number_of_stored_open_tokens_is_limited(shard: Shard) -> None:
    """An even older copy counts as a new open request: memory is limited, and such late copies do not occur."""
    tokens = [f"t{n}" for n in range(MAX_EARLIER_TOKENS + 2)]
    for token in tokens:
        shard.open(token, name="loader")

    assert "fenced" == shard.rejected(tokens[1], name="loader")
    assert (1, len(tokens)) == shard.open(tokens[0], name="loader")


def test_a_name_recognizes_delayed_copies_after_it_got_a_new_id(shard: Shard) -> None:
    shard.open("a", name="loader")
    shard.exhaust("b", name="loader")
    assert (2, 0) == shard.open("c", name="loader")

    assert ["fenced", "fenced"] == [shard.rejected(token, name="loader") for token in "ab"]


def test_an_id_that_does_not_belong_to_the_name_is_fenced(shard: Shard) -> None:
    """The id belongs to another producer; neither of the two may lose its epoch."""
    assert [(1, 0), (2, 0)] == [shard.open("a", name="loader"), shard.open("b")]

    assert "fenced" == shard.rejected("c", name="loader", producer_id=2, producer_epoch=0)
    assert [0, 0] == [producer.producer_epoch for producer in shard.state.producers.values()]


def test_a_stale_producer_of_an_expired_id_does_not_regain_its_name(shard: Shard) -> None:
    """Meanwhile the name has a new id, whose epoch equals the one of the stale producer."""
    shard.open("a", name="loader")
    shard.apply(e.ProducersExpired(producer_ids=[1]))
    assert (2, 0) == shard.open("b", name="loader")

    assert "fenced" == shard.rejected("c", name="loader", producer_id=1, producer_epoch=0)


def test_a_repeated_request_for_a_new_id_of_a_name_gets_the_same_reply(shard: Shard) -> None:
    """The reply was lost, so the client still sends its old id."""
    shard.exhaust("a", name="loader")
    old = {"name": "loader", "producer_id": 1, "producer_epoch": LAST_PRODUCER_EPOCH}

    assert [(2, 0), (2, 0)] == [shard.open("b", **old), shard.open("b", **old)]


def test_an_unused_name_gets_a_new_id_regardless_of_the_given_id(shard: Shard) -> None:
    shard.open("a")

    assert (2, 0) == shard.open("b", name="loader", producer_id=1, producer_epoch=0)
    assert [(1, None, 0), (2, "loader", 0)] == [
        (producer.producer_id, producer.name, producer.producer_epoch) for producer in shard.state.producers.values()
    ]


def test_opening_a_name_returns_its_source_position(shard: Shard) -> None:
    shard.open("a", name="loader")
    shard.state.producers[1].source_position = b"line 7"
    reply = shard.do(open_producer(m.OpenProducer(token="b", name="loader"), shard.state))

    assert isinstance(reply, m.ProducerIdentity)
    assert (1, b"line 7") == (reply.producer_epoch, reply.source_position)


def test_an_epoch_above_the_current_one_is_fenced(shard: Shard) -> None:
    """Leaders assign epochs, so a client cannot choose one."""
    shard.open("a")

    assert "fenced" == shard.rejected("b", producer_id=1, producer_epoch=7)


def test_an_exhausted_id_without_a_name_gets_a_new_id(shard: Shard) -> None:
    shard.exhaust("a")

    assert (2, 0) == shard.open("b", producer_id=1, producer_epoch=LAST_PRODUCER_EPOCH)


def test_an_unknown_id_gets_a_new_id(shard: Shard) -> None:
    """It never gets the old id: a delayed copy of its first batch may still arrive."""
    shard.open("a")
    shard.apply(e.ProducersExpired(producer_ids=[1]))

    assert (2, 0) == shard.open("b", producer_id=1, producer_epoch=0)


def test_an_exhausted_epoch_gets_a_new_id(shard: Shard) -> None:
    shard.exhaust("a", name="loader")

    assert (2, 0) == shard.open("b", name="loader")
    assert (2, 0) == shard.open("b", name="loader")
