"""The checker of terms, transfers and the spread notices each broken promise."""

from contextvars import copy_context

import pytest

from headgate.ledger.chunk import Chunk, ChunkHeader
from headgate.model import entries as e
from metrics import events
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.leadership_checker import VIEW_SECONDS, WRITER, LeadershipChecker


class Ledgers:
    """The ledgers of some shards, written to a checker."""

    def __init__(self, *, calm: bool = False) -> None:
        self.checker = LeadershipChecker()
        self._calm = calm

    def write(self, shard: int, epoch: int, writer: str, at: float = 0.0, *, begins: str = "") -> None:
        """Write a chunk; ``begins``: with the term of this daemon."""
        entries = (e.TermStarted(leader_epoch=epoch, instance=begins),) if begins else ()
        header = ChunkHeader(format=1, shard=shard, number=1, leader_epoch=epoch, at_ms=0, entries=1, records=0)
        context = copy_context()
        context.run(WRITER.set, writer)
        context.run(self.checker.check_chunk, shard, Chunk(header, entries), at)

    def lead(self, shard: int, daemon: str, at: float = 0.0) -> None:
        """Begin the next term."""
        self.write(shard, self.checker.epoch(shard) + 1, daemon, at, begins=daemon)

    def spread(self, shard: int, source: str, target: str, at: float) -> None:
        """Transfer a shard to spread shards."""
        self.lead(shard, target, at)
        event = events.TransferEnded(shard=shard, reason="spread", outcome="completed", seconds=0.0)
        self.checker.transfer_ended(source, event, calm=self._calm)


def test_a_term_is_written_by_the_daemon_that_began_it() -> None:
    ledgers = Ledgers()
    ledgers.lead(0, "a")
    ledgers.write(0, 1, "a")
    ledgers.lead(0, "b")

    with pytest.raises(BrokenPromiseError, match="daemon 'a' wrote chunk 1 in the term of 'b'"):
        ledgers.write(0, 2, "a")
    with pytest.raises(BrokenPromiseError, match="chunk 1 of epoch 1 after epoch 2"):
        ledgers.write(0, 1, "a")


def test_epochs_leave_out_no_number() -> None:
    ledgers = Ledgers()
    with pytest.raises(BrokenPromiseError, match="epoch 2 after epoch 0"):
        ledgers.write(0, 2, "a", begins="a")


def test_a_move_that_makes_shards_more_even_is_needed() -> None:
    ledgers = Ledgers(calm=True)
    for shard in range(3):
        ledgers.lead(shard, "a")

    ledgers.spread(0, "a", "b", at=100)

    assert ledgers.checker.transfers == {"spread completed": 1}
    with pytest.raises(BrokenPromiseError, match="moved from 'a' to 'b' to spread shards, which were even"):
        ledgers.spread(1, "a", "b", at=100 + VIEW_SECONDS + 1)


@pytest.mark.parametrize(("term_at", "started_at"), [(91.0, 0.0), (0.0, 91.0)])
def test_only_a_settled_term_moves_and_only_to_a_settled_daemon(term_at: float, started_at: float) -> None:
    for at, settled in ((100.0, False), (101.0, True)):
        ledgers = Ledgers(calm=True)
        for shard in range(3):
            ledgers.lead(shard, "a", at=term_at)
        ledgers.checker.started_at["b"] = started_at

        if settled:
            ledgers.spread(0, "a", "b", at=at)
        else:
            with pytest.raises(BrokenPromiseError, match=r"9.0 s after the term or the daemon began"):
                ledgers.spread(0, "a", "b", at=at)


def test_a_term_without_the_broker_ends() -> None:
    checker = Ledgers().checker
    terms = [(0, 5.0), (1, 15.0)]

    checker.check_terms_end("a", terms, lost_at=10.0, now=23.0)
    checker.check_terms_end("a", terms[1:], lost_at=10.0, now=24.0)
    with pytest.raises(BrokenPromiseError, match=r"leads shards \[0\] without the broker for 14.0 s"):
        checker.check_terms_end("a", terms, lost_at=10.0, now=24.0)


def test_no_term_begins_without_the_broker() -> None:
    ledgers = Ledgers()
    ledgers.checker.daemon_started("a", now_seconds=10.0)

    ledgers.lead(0, "a", at=11.0)  # It has lost the broker since it began to write.
    with pytest.raises(BrokenPromiseError, match=r"'a' begins a term of shard 1, 12.0 s after it lost the broker"):
        ledgers.lead(1, "a", at=22.0)
    ledgers.checker.thawed_at = 21.5
    ledgers.lead(1, "a", at=22.0)


def test_a_transfer_is_not_complete_before_a_term_has_followed() -> None:
    ledgers = Ledgers()
    ledgers.lead(0, "a")

    with pytest.raises(BrokenPromiseError, match="passed on by 'a', and no term has followed"):
        ledgers.spread(0, "a", "a", at=1.0)


def test_a_transfer_that_was_reported_as_done_has_happened() -> None:
    ledgers = Ledgers()
    ledgers.lead(0, "a")
    ledgers.lead(0, "b")
    ledgers.lead(0, "a")

    ledgers.checker.check_transfer_done(0, "b", epoch_before=1)
    ledgers.checker.check_transfer_done(0, "a", epoch_before=3)
    with pytest.raises(BrokenPromiseError, match="reported as transferred to 'b', which never led it"):
        ledgers.checker.check_transfer_done(0, "b", epoch_before=3)
