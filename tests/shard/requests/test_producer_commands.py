"""Producer identities: openings, repetitions, fencing, and commands on named producers."""

from typing import Any

import msgspec
import pytest

from controller.snapshots.format import encode_snapshot
from headgate.model import entries as e
from headgate.model.identifiers import ANONYMOUS
from headgate.protocol import codec
from headgate.protocol.codec import MURMUR_DIGEST_BYTES, PAGE_BYTES, batch_digest
from headgate.protocol.replies import Done, ProducerIdentity, ProducerReply, SourcePosition
from headgate.protocol.request_fields import shared_name
from headgate.protocol.requests import (
    DeleteProducer,
    DescribePosition,
    DescribeProducer,
    ListProducers,
    OpenProducer,
    ProduceBatch,
    Record,
)
from headgate.views.topics import ProducerInfo, TopicPosition
from shard.access.rules import OPEN
from shard.requests.handlers import AfterBarrier, Decision
from shard.requests.producer_commands import (
    delete_producer,
    describe_position,
    describe_producer,
    list_producers,
    open_producer,
)
from shard.requests.verdicts import judge_batch
from shard.state.shard_state import MEMORY_MS
from shard.subscriptions.refusal import Refusal
from tests.support.samples.stored_batches import stored_batch
from tests.support.whole_state import decode_snapshot
from tests.support.worlds.command_shard import CommandShard, judged

ORDERS = e.TopicCreated(topic_id=0, topic="orders", segments=1, token="create")
BATCH = ProduceBatch(topic="orders", records=[Record(b"k", b"", 0)])
LIMIT = 3
LAST_PRODUCER_EPOCH = 2_147_483_647  # docs/protocol.md


class Shard(CommandShard):
    """Opens producers, with ids from 1 on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_id = 0

    def identity(self, token: str, **kwargs: Any) -> ProducerIdentity:
        reply = self.do(self.outcome(token, **kwargs))
        self.last_id = max(self.last_id, reply.producer_id)
        return reply

    def outcome(
        self, token: str, *, name: str | None = None, user: str = ANONYMOUS, **kwargs: Any
    ) -> Decision | Refusal:
        """Decide a request; the first letter of a token is the incarnation of its program."""
        if name is not None:
            kwargs.setdefault("incarnation", ord(token[0]))
        request = OpenProducer(token=token, name=name, **kwargs)
        return open_producer(request, self.state, user=user, new_id=self.last_id + 1, max_named_producers=LIMIT)

    def open(self, token: str, **kwargs: Any) -> tuple[int, int]:
        reply = self.identity(token, **kwargs)
        return reply.producer_id, reply.producer_epoch

    def position(self, name: str, topic: str = "orders", user: str = ANONYMOUS) -> AfterBarrier | Refusal:
        return judged(describe_position, DescribePosition(producer=name, topic=topic), self.state, user)

    def exhaust(self, token: str, name: str | None = None) -> None:
        """Open producer 1 at its last epoch."""
        self.apply(e.ProducerOpened(producer_id=1, producer_epoch=LAST_PRODUCER_EPOCH, token=token, name=name))
        self.last_id = 1

    def store(self, producer_id: int, epoch: int = 0, sequence: int = 0, position: bytes | None = None) -> None:
        """Store one record."""
        offset = self.state.topics["orders"].tails[0].next_offset
        identity = {"producer_id": producer_id, "producer_epoch": epoch, "source_position": position}
        digest = batch_digest(BATCH, MURMUR_DIGEST_BYTES)
        self.apply(stored_batch(sequence, offset, topic_id=0, digest=digest, **identity))

    def batch_verdict(self, producer_id: int, epoch: int, sequence: int) -> str:
        batch = msgspec.structs.replace(BATCH, producer_id=producer_id, producer_epoch=epoch, sequence=sequence)
        judgement = judge_batch(batch, self.state, durable=10**9, user=ANONYMOUS, rules=OPEN)
        return judgement.verdict if isinstance(judgement, Refusal) else type(judgement).__name__

    def rejected(self, token: str, **kwargs: Any) -> str:
        return self.refusal(token, **kwargs).verdict

    def refusal(self, token: str, **kwargs: Any) -> Refusal:
        outcome = self.outcome(token, **kwargs)
        assert outcome.after_barrier
        return outcome

    def restart(self) -> None:
        """Continue from a snapshot."""
        data = encode_snapshot(self.state, written_at_ms=0)
        self.state = decode_snapshot(data, shard=0, chunk=self.state.chunk)


@pytest.fixture
def shard() -> Shard:
    return Shard(ORDERS)


@pytest.mark.parametrize("restarts", [False, True], ids=["one term", "from a snapshot"])
def test_a_repeated_open_request_gets_the_same_reply(shard: Shard, restarts: bool) -> None:
    """A lost reply must use up neither an identity nor an epoch."""
    for _ in range(3):
        assert (1, 0) == shard.open("a")
        assert (2, 0) == shard.open("n", name="loader")
        if restarts:
            shard.restart()
    for _ in range(3):
        assert (1, 1) == shard.open("b", producer_id=1, producer_epoch=0)
        assert (2, 1) == shard.open("o", producer_id=2, producer_epoch=0), "an id is enough for a name"
        if restarts:
            shard.restart()
    assert 2 == len(shard.state.producers)


def test_a_token_is_used_up_when_the_identity_has_stored_a_batch(shard: Shard) -> None:
    """The reply promises that numbering starts at 0; a new batch 0 would be answered as a duplicate."""
    shard.open("a")
    shard.store(1)

    assert "fenced" == shard.rejected("a")
    assert "Duplicate" == shard.batch_verdict(1, 0, 0)


def test_a_token_that_has_opened_one_name_does_not_open_another(shard: Shard) -> None:
    """A program with a constant token would continue another program's producer."""
    shard.open("a", name="loader")

    assert "invalid" == shard.rejected("a", name="gateway")
    assert (1, 0) == shard.open("a", name="loader")


@pytest.mark.parametrize("epoch", [0, 7])
def test_a_producer_that_requests_the_next_epoch_of_another_than_the_current_one_is_fenced(shard: Shard, epoch: int):
    """It is stale, or has chosen an epoch itself."""
    shard.open("a")
    shard.open("b", producer_id=1, producer_epoch=0)

    assert "fenced" == shard.rejected("c", producer_id=1, producer_epoch=epoch)


def test_the_secret_of_a_shared_name_opens_it_for_another_user_and_nothing_else_does(shard: Shard) -> None:
    name = shared_name("letters", "s3cret")
    shard.open("a", name=name, secret="s3cret")
    shard.open("a2", name="letters")
    shard.open("a3")
    refused = [{"name": name}, {"name": name, "secret": "other"}, {"name": "letters", "secret": "s3cret"}]
    refused += [{"producer_id": 1}, {"producer_id": 3, "secret": "s3cret"}]
    for number, request in enumerate(refused):
        assert "forbidden" == shard.rejected(f"b{number}", user="rival", **request)
    assert "forbidden" == shard.rejected("a3", user="rival", name=name, secret="s3cret"), "the token is another's"
    assert (1, 1) == shard.open("c", user="rival", name=name, secret="s3cret")
    assert "rival" == shard.state.producers[1].user
    assert "forbidden" == shard.rejected("d", name=name), "the name has passed to the other user"
    assert (1, 2) == shard.open("e", name=name, secret="s3cret")


def test_a_delayed_copy_of_an_anonymous_open_request_is_fenced(shard: Shard) -> None:
    """Its identity has been opened at a further epoch since; a copy that names none must not get a new one."""
    shard.open("a")
    shard.open("b", producer_id=1, producer_epoch=0)
    shard.open("c", producer_id=1, producer_epoch=1)
    shard.restart()

    assert ["fenced", "fenced"] == [shard.rejected("a"), shard.rejected("b", producer_id=1, producer_epoch=0)]
    assert (1, 2) == shard.open("c")


def test_a_copy_of_an_opening_is_fenced_however_late_it_arrives(shard: Shard) -> None:
    """The copy of the first opening, and those of each later epoch, by the program itself and by ten others."""
    copies: list[dict[str, Any]] = []
    for letter in "abcdefghij":
        copies.append({"token": letter, "name": "loader"})
        producer_id, epoch = shard.open(**copies[-1])
        copies.append({"token": letter * 2, "name": "loader", "producer_id": producer_id, "producer_epoch": epoch})
        shard.open(**copies[-1])
    shard.store(1, epoch=19)
    shard.restart()

    assert {"fenced"} == {shard.rejected(**copy) for copy in copies}
    assert "Accept" == shard.batch_verdict(1, 19, 1), "the running program is not disturbed"


@pytest.mark.parametrize("opened_first", [True, False], ids=["the newer opened first", "the older opened first"])
def test_the_program_that_started_later_holds_the_name(shard: Shard, opened_first: bool) -> None:
    """Whichever arrives first: the older program's first record for a shard must not fence the newer one there."""
    if not opened_first:
        shard.open("older", name="loader", incarnation=7)
    identity = shard.open("newer", name="loader", incarnation=8)

    refused = shard.refusal("other", name="loader", incarnation=7)
    assert ("fenced", True) == (refused.verdict, "incarnation 8" in refused.reason)
    assert "fenced" == shard.rejected("same", name="loader", incarnation=8), "of the same millisecond"
    assert "Accept" == shard.batch_verdict(*identity, 0)


def test_a_copy_of_an_opening_does_not_bring_a_deleted_name_back(shard: Shard) -> None:
    """The next program would read "not created, no position"; it is one that started after the deleted one."""
    shard.open("a", name="loader")
    shard.open("b", name="loader")
    shard.do(delete_producer(DeleteProducer(producer="loader", token="gone"), shard.state))
    shard.restart()

    assert ["forgotten"] * 2 == [shard.rejected(token, name="loader") for token in "ab"]
    later = shard.identity("c", name="loader")
    assert (2, True) == (later.producer_id, later.created)


def test_a_deleted_name_is_free_once_no_copy_can_arrive(shard: Shard) -> None:
    """A machine whose clock is slow is not shut out for good."""
    shard.open("b", name="loader")
    shard.do(delete_producer(DeleteProducer(producer="loader", token="gone"), shard.state))
    shard.state.begin_chunk(shard.state.chunk + 1, 1 + MEMORY_MS)

    assert shard.identity("a", name="loader").created


# New ids


@pytest.mark.parametrize("name", [None, "loader"])
def test_an_exhausted_id_is_replaced_and_shut_out(shard: Shard, name: str | None) -> None:
    """Late batches under the old id are refused, and a repeated request gets the same new id."""
    shard.exhaust("a", name=name)
    shard.store(1, LAST_PRODUCER_EPOCH, position=b"line 7")
    old = {"name": name, "producer_id": 1, "producer_epoch": LAST_PRODUCER_EPOCH}
    reply = shard.identity("b", **old)
    shard.restart()

    assert (2, 0, False) == (reply.producer_id, reply.producer_epoch, reply.created)
    if name is not None:
        assert AfterBarrier(SourcePosition(topic_id=0, position=b"line 7", incarnation=ord("b"))) == shard.position(
            name
        )
    assert (2, 0) == shard.open("b", **old)
    assert ["forgotten"] * 3 == [shard.batch_verdict(1, LAST_PRODUCER_EPOCH, sequence) for sequence in range(3)]
    assert "Accept" == shard.batch_verdict(2, 0, 0)


def test_an_id_is_used_up_to_its_last_epoch(shard: Shard) -> None:
    shard.apply(e.ProducerOpened(producer_id=1, producer_epoch=LAST_PRODUCER_EPOCH - 1, token="a", name="loader"))
    shard.last_id = 1

    assert [(1, LAST_PRODUCER_EPOCH), (2, 0)] == [shard.open(token, name="loader") for token in "bc"]


def test_an_id_that_does_not_belong_to_the_name_is_fenced(shard: Shard) -> None:
    """The id belongs to another producer; neither of the two may lose its epoch."""
    assert [(1, 0), (2, 0)] == [shard.open("a", name="loader"), shard.open("b")]

    assert "fenced" == shard.rejected("c", name="loader", producer_id=2, producer_epoch=0)
    assert [0, 0] == [producer.producer_epoch for producer in shard.state.producers.values()]


def test_a_name_keeps_a_position_for_each_topic(shard: Shard) -> None:
    """Also in a topic of the same shard, and not in one that is created again. The reply waits for a barrier."""
    shard.apply(e.TopicCreated(topic_id=1, topic="returns", segments=1, token="create"))
    shard.open("a", name="loader")
    shard.store(1, position=b"line 7")
    shard.restart()
    shard.open("b", name="loader")

    assert AfterBarrier(SourcePosition(topic_id=0, position=b"line 7", incarnation=ord("b"))) == shard.position(
        "loader"
    )
    assert AfterBarrier(SourcePosition(topic_id=1, incarnation=ord("b"))) == shard.position("loader", "returns")
    shard.apply(e.TopicDeleted(topic_id=0, token="gone"))
    missing = shard.position("loader")
    assert "there is no topic 'orders'" in missing.reason
    assert {} == shard.state.producers[1].source_positions
    shard.apply(e.TopicCreated(topic_id=2, topic="orders", segments=1, token="again"))
    assert AfterBarrier(SourcePosition(topic_id=2, incarnation=ord("b"))) == shard.position("loader")


@pytest.mark.parametrize(
    ("name", "user", "verdict"), [("loader", "rival", "forbidden"), ("other", ANONYMOUS, "invalid")]
)
def test_a_position_of_another_user_or_of_an_unknown_name_is_refused(shard: Shard, name: str, user: str, verdict: str):
    shard.open("a", name="loader")

    refused = shard.position(name, user=user)
    assert (verdict, True) == (refused.verdict, refused.after_barrier)


@pytest.mark.parametrize("restarts", [False, True], ids=["one term", "from a snapshot"])
@pytest.mark.parametrize("name", [None, "loader"], ids=["anonymous", "named"])
def test_each_reply_names_the_sequence_that_the_previous_epoch_reached(shard: Shard, name, restarts) -> None:
    """Also in a repeated reply, although the epoch that it speaks of has ended."""
    assert shard.identity("a", name=name).previous_next_sequence is None
    shard.store(1, 0, 0)
    shard.store(1, 0, 1)
    for _ in range(2):
        assert 2 == shard.identity("b", name=name, producer_id=1, producer_epoch=0).previous_next_sequence
        assert ["fenced"] * 3 == [shard.batch_verdict(1, 0, sequence) for sequence in range(3)]
        if restarts:
            shard.restart()
    assert 0 == shard.identity("c", name=name, producer_id=1, producer_epoch=1).previous_next_sequence


def test_a_reply_with_a_new_id_says_of_a_known_producer_what_it_reached_and_of_a_forgotten_one_nothing(shard: Shard):
    shard.exhaust("a")
    shard.store(1, LAST_PRODUCER_EPOCH)
    replaced = shard.identity("b", producer_id=1, producer_epoch=LAST_PRODUCER_EPOCH)
    shard.store(2)
    shard.apply(e.ProducersExpired(producer_ids=[2]))
    forgotten = shard.identity("c", producer_id=2, producer_epoch=0, accept_new=True)

    assert (2, 1) == (replaced.producer_id, replaced.previous_next_sequence)
    assert (3, None) == (forgotten.producer_id, forgotten.previous_next_sequence)


# New, continued or unknown producers


def test_the_reply_says_whether_the_producer_is_new(shard: Shard) -> None:
    """Also in a repeated reply."""
    assert [True, True] == [shard.identity("a", name="loader").created for _ in range(2)]
    assert [False, False] == [shard.identity("b", name="loader").created for _ in range(2)]
    assert shard.identity("c").created
    assert not shard.identity("d", producer_id=2, producer_epoch=0).created


def test_an_id_that_is_no_longer_known_is_forgotten_unless_a_new_identity_is_accepted(shard: Shard) -> None:
    """Without notice, a new identity could store records twice. It never gets the old id: a late copy may still arrive."""
    shard.open("a")
    shard.apply(e.ProducersExpired(producer_ids=[1]))

    for name, reason in ((None, "producer 1 is not known"), ("loader", "there is no producer 'loader'")):
        refused = shard.refusal("b", name=name, producer_id=1, producer_epoch=0)
        assert ("forgotten", True) == (refused.verdict, reason in refused.reason)
    reply = shard.identity("b", producer_id=1, producer_epoch=0, accept_new=True)
    assert (2, True) == (reply.producer_id, reply.created)


def test_the_id_of_another_producer_does_not_continue_a_deleted_name(shard: Shard) -> None:
    shard.open("a")
    assert "forgotten" == shard.refusal("b", name="loader", producer_id=1, producer_epoch=0).verdict


def test_above_the_limit_a_new_name_is_rejected(shard: Shard) -> None:
    """Nothing is evicted: existing names and anonymous producers can still be opened."""
    for name in ("a", "b", "c"):
        shard.open(name, name=name)

    refused = shard.refusal("d", name="d")
    assert ("invalid", True) == (refused.verdict, "max_named_producers=3" in refused.reason)
    assert [(1, 1), (4, 0)] == [shard.open("e", name="a"), shard.open("f")]
    shard.do(delete_producer(DeleteProducer(producer="b", token="g"), shard.state))
    assert (5, 0) == shard.open("d", name="d")


# Commands


def test_that_an_incarnation_is_reached_is_known_without_a_barrier(shard: Shard) -> None:
    shard.open("b", name="loader")
    for incarnation in (ord("a"), ord("b"), ord("c")):
        question = DescribePosition(producer="loader", topic="orders", incarnation=incarnation)
        answer = judged(describe_position, question, shard.state, ANONYMOUS)
        body = SourcePosition(topic_id=0, incarnation=ord("b"))
        assert answer == (body if incarnation <= ord("b") else AfterBarrier(body))


def test_a_deleted_producer_is_shut_out_and_its_name_can_be_opened_again(shard: Shard) -> None:
    shard.open("a", name="loader")
    shard.store(1, position=b"line 7")
    deletion = DeleteProducer(producer="loader", token="gone")
    assert [Done(), Done()] == [shard.do(delete_producer(deletion, shard.state)) for _ in range(2)]
    shard.restart()

    assert "forgotten" == shard.batch_verdict(1, 0, 1)
    assert "forgotten" == shard.rejected("b", name="loader", producer_id=1, producer_epoch=0)
    reply = shard.identity("c", name="loader")
    assert (2, True) == (reply.producer_id, reply.created)
    assert AfterBarrier(SourcePosition(topic_id=0, incarnation=ord("c"))) == shard.position("loader")
    assert Done() == shard.do(delete_producer(deletion, shard.state)), "a late copy"
    assert shard.state.producers.of_name("loader") is not None, "the late copy deletes nothing"


def test_a_named_producer_is_described(shard: Shard) -> None:
    shard.open("a", name="loader")
    shard.store(1, position=b"line 7")

    position = TopicPosition(topic="orders", topic_id=0, position=b"line 7")
    numbers = {"shard": 0, "producer_id": 1, "producer_epoch": 0, "next_sequence": 1, "last_used_at_ms": 1}
    expected = ProducerReply(producer=ProducerInfo(producer="loader", positions=(position,), **numbers))
    assert expected == shard.do(describe_producer(DescribeProducer(producer="loader"), shard.state))


@pytest.mark.parametrize(
    "outcome",
    [
        lambda state: judged(describe_producer, DescribeProducer(producer="missing"), state),
        lambda state: judged(delete_producer, DeleteProducer(producer="missing", token="t"), state),
    ],
)
def test_an_unknown_name_is_rejected(shard: Shard, outcome: Any) -> None:
    shard.open("a")

    assert Refusal("invalid", "there is no producer 'missing' on this shard", after_barrier=True) == outcome(
        shard.state
    )


def test_named_producers_are_listed_page_by_page(shard: Shard) -> None:
    """Positions are as large as possible; a reply above the limit of a message could not be sent."""
    names = [f"{number:0100}" for number in range(1, 501)]
    for number, name in enumerate(names, start=1):
        shard.apply(e.ProducerOpened(producer_id=number, producer_epoch=0, token=name, name=name))
        shard.store(number, position=bytes(1024))
    shard.open("anonymous")
    pages = [shard.do(list_producers(ListProducers(), shard.state))]
    while (after := pages[-1].next) is not None:
        pages.append(shard.do(list_producers(ListProducers(after=after), shard.state)))

    assert names == [each.producer for page in pages for each in page.producers]
    assert 3 == len(pages)
    assert all(len(codec.encode(page)) <= 1.01 * PAGE_BYTES for page in pages)
