"""The checker of terms, transfers and the spread notices each broken promise."""

from contextvars import copy_context

import pytest

from headgate import ShardInfo
from headgate.ledger.chunk import Chunk, ChunkHeader
from headgate.model import entries as e
from metrics import events
from tests.simulation.broken_promise import InvariantViolationError
from tests.simulation.leadership_checker import VIEW_SECONDS, WRITER, LeadershipChecker, unevenness


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

    with pytest.raises(InvariantViolationError, match="daemon 'a' wrote chunk 1 in the term of 'b'"):
        ledgers.write(0, 2, "a")
    with pytest.raises(InvariantViolationError, match="chunk 1 of epoch 1 after epoch 2"):
        ledgers.write(0, 1, "a")


def test_epochs_leave_out_no_number() -> None:
    ledgers = Ledgers()
    with pytest.raises(InvariantViolationError, match="epoch 2 after epoch 0"):
        ledgers.write(0, 2, "a", begins="a")


def test_a_move_that_makes_shards_more_even_is_needed() -> None:
    ledgers = Ledgers(calm=True)
    for shard in range(3):
        ledgers.lead(shard, "a")

    ledgers.spread(0, "a", "b", at=100)

    assert ledgers.checker.transfers == {"spread completed": 1}
    with pytest.raises(InvariantViolationError, match="moved from 'a' to 'b' to spread shards, which were even"):
        ledgers.spread(1, "a", "b", at=100 + VIEW_SECONDS + 1)


def test_a_move_that_an_old_view_needed_is_no_violation() -> None:
    ledgers = Ledgers(calm=True)
    for shard in range(3):
        ledgers.lead(shard, "a")

    ledgers.spread(0, "a", "b", at=100)
    ledgers.spread(1, "a", "b", at=100 + VIEW_SECONDS / 2)

    assert ledgers.checker.epoch(1) == 2


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
            with pytest.raises(InvariantViolationError, match=r"9.0 s after the term or the daemon began"):
                ledgers.spread(0, "a", "b", at=at)


@pytest.mark.parametrize(("settled", "at"), [(True, 92.9), (True, 94.1), (False, 92.9)])
def test_a_view_may_be_older_than_a_restart_of_the_successor(settled: bool, at: float) -> None:
    ledgers = Ledgers(calm=True)
    for shard in range(3):
        ledgers.lead(shard, "a", at=0.0)
    ledgers.checker.daemon_started("b", 0.0 if settled else 85.0)
    ledgers.checker.daemon_started("b", 91.0)

    if settled and at < 94.0:
        ledgers.spread(0, "a", "b", at=at)
    else:
        with pytest.raises(InvariantViolationError, match="after the term or the daemon began"):
            ledgers.spread(0, "a", "b", at=at)


def test_the_terms_of_a_daemon_that_has_just_started_move_sooner() -> None:
    for at, settled in ((24.0, False), (25.0, True)):
        ledgers = Ledgers(calm=True)
        for shard in range(3):
            ledgers.lead(shard, "a", at=20.0)
        ledgers.checker.started_at["a"] = 15.0

        if settled:
            ledgers.spread(0, "a", "b", at=at)
        else:
            with pytest.raises(InvariantViolationError, match=r"4.0 s after the term or the daemon began"):
                ledgers.spread(0, "a", "b", at=at)


def test_a_term_without_the_broker_ends() -> None:
    checker = Ledgers().checker
    terms = [(0, 5.0), (1, 15.0)]

    checker.check_terms_end("a", terms, lost_at=10.0, now=23.0)
    checker.check_terms_end("a", terms[1:], lost_at=10.0, now=24.0)
    with pytest.raises(InvariantViolationError, match=r"leads shards \[0\] without the broker for 14.0 s"):
        checker.check_terms_end("a", terms, lost_at=10.0, now=24.0)


def test_moves_are_judged_in_calm_worlds_only() -> None:
    ledgers = Ledgers()
    ledgers.lead(0, "a")
    ledgers.spread(0, "a", "b", at=100)

    assert ledgers.checker.epoch(0) == 2


def test_a_transfer_is_not_complete_before_a_term_has_followed() -> None:
    ledgers = Ledgers()
    ledgers.lead(0, "a")

    with pytest.raises(InvariantViolationError, match="passed on by 'a', and no term has followed"):
        ledgers.spread(0, "a", "a", at=1.0)


def test_a_transfer_that_was_reported_as_done_has_happened() -> None:
    ledgers = Ledgers()
    ledgers.lead(0, "a")
    ledgers.lead(0, "b")
    ledgers.lead(0, "a")

    ledgers.checker.check_transfer_done(0, "b", epoch_before=1)
    ledgers.checker.check_transfer_done(0, "a", epoch_before=3)
    with pytest.raises(InvariantViolationError, match="reported as transferred to 'b', which never led it"):
        ledgers.checker.check_transfer_done(0, "b", epoch_before=3)


def test_a_description_names_daemons_that_began_the_terms() -> None:
    ledgers = Ledgers()
    ledgers.lead(0, "a")
    ledgers.lead(0, "b")
    unled = ShardInfo(shard=1, leader_epoch=0)

    for epoch, daemon in ((1, "a"), (2, "b")):
        ledgers.checker.check_description([ShardInfo(shard=0, leader_epoch=epoch, daemon=daemon), unled], 2)
    for epoch, daemon in ((1, "b"), (2, "a"), (3, "b"), (0, "a")):
        with pytest.raises(InvariantViolationError, match=f"leader of epoch {epoch} of shard 0"):
            ledgers.checker.check_description([ShardInfo(shard=0, leader_epoch=epoch, daemon=daemon), unled], 2)
    with pytest.raises(InvariantViolationError, match="has 3 shards and is described with"):
        ledgers.checker.check_description([unled], 3)


@pytest.mark.parametrize(
    ("leaders", "in_maintenance", "fixed", "problem"),
    [
        ("ab", "", [], None),
        ("aab", "", [], None),
        ("aaab", "", [], "daemon 'a' leads 3 shards, and 'b' 1"),
        ("aaab", "", [0, 1, 2], None),
        ("aaab", "", [0, 1], "daemon 'a' leads 3 shards"),
        ("aaaa", "b", [], None),
        ("aaab", "b", [], "daemon 'b' is in maintenance and leads shards [3]"),
        ("bb", "ab", [], None),
        ("a-", "", [], "shard 1 has no leader"),
        ("a-", "ab", [], "shard 1 has no leader"),
    ],
)
def test_what_is_uneven(leaders: str, in_maintenance: str, fixed: list[int], problem: str | None) -> None:
    led = {shard: None if name == "-" else name for shard, name in enumerate(leaders)}

    found = unevenness(led, "ab", in_maintenance, fixed)

    assert found == problem if problem is None or found is None else found.startswith(problem)
