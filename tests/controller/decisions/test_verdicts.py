"""Every row of the verdict table, in its order, and what must not happen beside it."""

from typing import Any

import pytest

from controller.decisions.verdicts import Accept, Batch, Duplicate, Judgement, judge_batch, judge_term
from controller.state.dedup_window import WINDOW
from controller.state.shard_state import ShardState
from coordinator.decisions.refusal import Refusal
from headgate.model import entries as e
from headgate.protocol import messages as m

PRODUCER = 9


def batch(
    sequence: int = 0, *, epoch: int = 0, producer: int | None = PRODUCER, records: int = 1, **kwargs: Any
) -> m.ProduceBatch:
    return m.ProduceBatch(
        topic=kwargs.get("topic", "orders"),
        records=[m.Record(b"k", b"v", 0)] * records,
        producer_id=producer,
        producer_epoch=epoch,
        sequence=sequence,
    )


def stored(sequence: int, *, epoch: int = 0, count: int = 1, first_offset: int) -> e.RecordsStored:
    return e.RecordsStored(
        topic_id=1,
        count=count,
        placements=[e.Placement(0, 0, 65535, first_offset, count)],
        size_bytes=2 * count,
        producer_id=PRODUCER,
        producer_epoch=epoch,
        sequence=sequence,
    )


def shard(batches: int = 0, *, epoch: int = 0) -> ShardState:
    """A shard with one producer that has stored ``batches`` batches of one record, each in its own chunk from 2 on."""
    state = ShardState(0)
    state.apply_all(
        [
            e.TermStarted(leader_epoch=1, instance="a"),
            e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t"),
            e.ProducerOpened(producer_id=PRODUCER, producer_epoch=epoch, token="x"),
        ],
        chunk=1,
        at_ms=0,
    )
    for sequence in range(batches):
        state.apply_all([stored(sequence, epoch=epoch, first_offset=sequence)], chunk=2 + sequence, at_ms=0)
    return state


def request(body: Batch | m.ListTopics, leader_epoch: int | None) -> m.Request:
    return m.Request(request_id=1, client_id="client", leader_epoch=leader_epoch, body=body)


def verdict(judgement: Judgement) -> tuple[str, bool]:
    assert isinstance(judgement, Refusal)
    return judgement.verdict, judgement.after_barrier


def test_row_1_an_unknown_topic_is_invalid_and_proved() -> None:
    """Proved: a deposed leader may not have heard of the topic."""
    assert ("invalid", True) == verdict(judge_batch(batch(topic="other"), shard(), 1))


@pytest.mark.parametrize("epoch", [0, 2], ids=["older", "newer"])
def test_row_2_another_reign_is_not_leader(epoch: int) -> None:
    """Exact equality: both older and newer are rejected, at once."""
    judgement = judge_term(request(batch(), epoch), 1)

    assert ("not_leader", False, False) == (judgement.verdict, judgement.after_barrier, judgement.delayed)


def test_row_3_no_epoch_is_refused_with_a_delay() -> None:
    """The delay slows the retries of a client that cannot be kept in order."""
    judgement = judge_term(request(batch(), None), 1)

    assert ("not_leader", True) == (judgement.verdict, judgement.delayed)


def test_this_reign_is_judged_further() -> None:
    """And a question need not be pinned to a reign."""
    assert judge_term(request(batch(), 1), 1) is None
    assert judge_term(request(m.ListTopics(), None), 1) is None


def test_row_4_an_older_producer_epoch_is_fenced_and_proved() -> None:
    """Even where its sequence matches one of the newer epoch's finished batches (Redpanda took it for that)."""
    assert ("fenced", True) == verdict(judge_batch(batch(0, epoch=0), shard(1, epoch=1), 2))


def test_row_5_a_newer_producer_epoch_begins_at_0() -> None:
    assert Accept() == judge_batch(batch(0, epoch=3), shard(2), 3)


def test_row_6_a_newer_producer_epoch_does_not_begin_elsewhere() -> None:
    assert ("out_of_order", True) == verdict(judge_batch(batch(1, epoch=3), shard(1), 2))


@pytest.mark.parametrize("sequence", [0, 5])
def test_row_6_an_unknown_producer_is_refused_at_any_sequence(sequence: int) -> None:
    """It was forgotten: its first batch may be a late copy of one that was stored."""
    assert ("out_of_order", True) == verdict(judge_batch(batch(sequence, producer=77), shard(), 1))


def test_a_refusal_leaves_no_trace() -> None:
    """Redpanda's rejected first batch left an entry that wedged the retry."""
    state = shard()
    judge_batch(batch(5, producer=77), state, 1)
    judge_batch(batch(1), state, 1)

    assert {PRODUCER} == set(state.producers)
    assert Accept() == judge_batch(batch(0), state, 1)


def test_row_7_a_finished_batch_gets_its_original_offsets() -> None:
    assert Duplicate(3, [e.Placement(0, 0, 65535, 1, 1)]) == judge_batch(batch(1), shard(3), 4)


def test_row_8_a_batch_in_flight_waits_for_its_original() -> None:
    """The same answer, bound to the original's chunk, which is not durable yet."""
    assert Duplicate(4, [e.Placement(0, 0, 65535, 2, 1)]) == judge_batch(batch(2), shard(3), 3)


def test_row_9_the_next_sequence_is_accepted_while_the_last_is_in_flight() -> None:
    assert Accept() == judge_batch(batch(3), shard(3), 2)


def test_row_10_a_sequence_ahead_is_out_of_order_and_proved() -> None:
    assert ("out_of_order", True) == verdict(judge_batch(batch(4), shard(3), 4))


def test_row_10_the_first_batch_refused_keeps_the_second_out() -> None:
    """Restate's hole: rejected once, then accepted in the same epoch, loses the first silently."""
    assert ("out_of_order", True) == verdict(judge_batch(batch(1), shard(), 1))


def test_row_11_older_than_the_window_is_a_duplicate_without_offsets() -> None:
    state = shard(WINDOW + 2)

    assert Duplicate(0, None) == judge_batch(batch(1), state, WINDOW + 3)
    assert isinstance(judge_batch(batch(2), state, WINDOW + 3), Duplicate)
    assert judge_batch(batch(2), state, WINDOW + 3).placements is not None


def test_a_rebuilt_batch_is_invalid() -> None:
    """Same sequence, other contents: answering with the original's offsets would lie about some records."""
    assert ("invalid", True) == verdict(judge_batch(batch(1, records=2), shard(3), 4))


def test_no_more_batches_are_in_flight_than_are_remembered() -> None:
    """One more, and a repeated oldest one could not be answered with its offsets."""
    state = shard(WINDOW)

    assert ("unavailable", False) == verdict(judge_batch(batch(WINDOW), state, 1))
    assert Accept() == judge_batch(batch(WINDOW), state, 2)


def test_without_a_producer_id_everything_is_taken() -> None:
    """At least once, no dedupe."""
    assert Accept() == judge_batch(batch(17, producer=None), shard(), 1)


def acknowledgements(sequence: int, count: int = 1) -> m.AcknowledgeBatch:
    return m.AcknowledgeBatch(
        topic="orders",
        subscription="s",
        consumer="c1",
        incarnation=1,
        acknowledgements=[m.Acknowledgement(0, 1, 0, 5)] * count,
        producer_id=PRODUCER,
        sequence=sequence,
    )


def test_acknowledgements_are_judged_by_the_same_table() -> None:
    assert ("out_of_order", True) == verdict(judge_batch(acknowledgements(4), shard(3), 4))


def test_acknowledgements_without_an_epoch_are_delayed_too() -> None:
    judgement = judge_term(request(acknowledgements(0), None), 1)

    assert ("not_leader", True) == (judgement.verdict, judgement.delayed)


def test_a_repeated_batch_of_acknowledgements_hears_again_what_did_not_count() -> None:
    state = shard(0)
    created = e.SubscriptionCreated(
        topic_id=1, subscription_id=9, subscription="s", subscription_type="STREAM", order="strict", positions={}
    )
    taken = e.RecordsAcknowledged(
        topic_id=1,
        subscription_id=9,
        seek_generation=0,
        ranges=[],
        count=1,
        producer_id=PRODUCER,
        rejected=[0],
    )
    state.apply_all([created, taken], chunk=state.chunk + 1, at_ms=0)

    assert Duplicate(state.chunk, None, (0,)) == judge_batch(acknowledgements(0), state, state.chunk)


def test_a_rebuilt_batch_of_acknowledgements_is_invalid() -> None:
    assert ("invalid", True) == verdict(judge_batch(acknowledgements(1, 2), shard(3), 4))
    assert isinstance(judge_batch(acknowledgements(1, 1), shard(3), 4), Duplicate)
