"""A program that lost a segment may deliver what it has queued, and does not begin again."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from headgate.model import entries as e
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.holding_rules import HoldingRules
from tests.simulation.test_invariant_checker import CheckedLedger

pytestmark = pytest.mark.virtual_time(start=1000)
FIRST = "a-1", 0, 1  # It is released.


def released(tmp_path: Path, reason: str, granted_to: str = "") -> HoldingRules:
    """Return the rules after a program has delivered the records 0 to 4 and its holding ended, maybe by a seek."""
    ledger = CheckedLedger(tmp_path)
    ledger.grant(0, "a", 1)
    rules = ledger.checker.rules.holdings
    for offset in range(5):
        rules.check_delivery(FIRST, offset, 0)
    if reason == "rewound":
        ledger.about(e.SubscriptionSeek, seek_generation=1, positions={0: 0}, token="t")
    else:
        ledger.release(0, 1, reason)
    if granted_to:
        ledger.grant(0, granted_to, 2)
    return rules


@pytest.mark.parametrize("reason", ["confirmed", "rewound"])
async def test_it_does_not_begin_again(tmp_path: Path, reason: str) -> None:
    with pytest.raises(BrokenPromiseError, match="0:0 of generation 1 was delivered again after its release"):
        released(tmp_path, reason).check_delivery(FIRST, 0, 0)


async def test_what_was_queued_and_a_later_holding_are_delivered(tmp_path: Path) -> None:
    rules = released(tmp_path, "confirmed")

    rules.check_delivery(FIRST, 5, 0)
    rules.check_delivery(("a-1", 0, 2), 0, 0)


@pytest.mark.parametrize("granted_to", ["", "a"])
async def test_a_program_that_does_not_know_yet_may_read_on(tmp_path: Path, granted_to: str) -> None:
    released(tmp_path, "timed_out", granted_to).check_delivery(FIRST, 0, 0)


async def test_a_handler_that_has_failed_may_not_know_yet_that_its_segment_was_moved(tmp_path: Path) -> None:
    released(tmp_path, "rewound").check_delivery(FIRST, 0, 0, is_attempt=True)
    with pytest.raises(BrokenPromiseError, match="was delivered again after its release"):
        released(tmp_path, "confirmed").check_delivery(FIRST, 0, 0, is_attempt=True)


@pytest.mark.parametrize(("reason", "may_overlap"), [("confirmed", False), ("timed_out", False), ("rewound", True)])
async def test_no_two_programs_read_a_segment_at_the_same_time(tmp_path: Path, reason: str, may_overlap: bool) -> None:
    rules = released(tmp_path, reason, granted_to="b")

    with nullcontext() if may_overlap else pytest.raises(BrokenPromiseError, match="after another consumer got it"):
        rules.check_delivery(FIRST, 5, 0)


async def test_a_consumer_acknowledges_what_it_was_delivered(tmp_path: Path) -> None:
    ledger = CheckedLedger(tmp_path)
    ledger.records(*range(5))
    ledger.grant(0, "a", 1)
    rules = ledger.checker.rules.holdings
    rules.streams = {ledger.names[1]}
    for offset in range(4):
        rules.check_delivery(FIRST, offset, 0)

    refused = pytest.raises(BrokenPromiseError, match="a-1 acknowledges segment 0 to 5, and got it to 3")
    for end_offset, outcome in ((4, nullcontext()), (5, refused)):
        ids = {"topic_id": ledger.orders, "subscription_id": ledger.billing, "seek_generation": 0}
        with outcome:
            acknowledged = e.RecordsAcknowledged(**ids, ranges=[e.AcknowledgedRange(0, 0, end_offset)])
            rules.check_acknowledgement(ledger.state, acknowledged)
