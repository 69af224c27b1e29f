"""A program that lost a segment may deliver what it has queued, and does not begin again."""

from pathlib import Path

import pytest

from headgate.model import entries as e
from tests.simulation.broken_promise import InvariantViolationError
from tests.simulation.holding_rules import HoldingRules
from tests.simulation.test_invariant_checker import CheckedLedger

pytestmark = pytest.mark.looptime(start=1000)


def released(tmp_path: Path, reason: e.ReleaseReason) -> HoldingRules:
    """Return the rules after a program has delivered the records 0 to 4 and its holding was released."""
    ledger = CheckedLedger(tmp_path)
    ledger.grant(0, "a", 1)
    rules = ledger.checker.rules.holdings
    for offset in range(5):
        rules.check_delivery("a-1", 0, 1, offset)
    entry = e.SegmentReleased(
        topic_id=ledger.orders, subscription_id=ledger.billing, segment=0, generation=1, reason=reason
    )
    ledger.add(entry)
    ledger.commit()
    return rules


@pytest.mark.parametrize("reason", ["confirmed", "rewound"])
async def test_it_does_not_begin_again(tmp_path: Path, reason: e.ReleaseReason) -> None:
    with pytest.raises(InvariantViolationError, match="0:0 of generation 1 was delivered again after its release"):
        released(tmp_path, reason).check_delivery("a-1", 0, 1, 0)


async def test_what_was_queued_and_a_later_holding_are_delivered(tmp_path: Path) -> None:
    rules = released(tmp_path, "confirmed")

    rules.check_delivery("a-1", 0, 1, 5)
    rules.check_delivery("a-1", 0, 2, 0)


async def test_a_program_that_does_not_know_yet_may_read_on(tmp_path: Path) -> None:
    released(tmp_path, "timed_out").check_delivery("a-1", 0, 1, 0)
