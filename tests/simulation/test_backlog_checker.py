"""What the drain checks of a simulation count is compared with the leader's own counts."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from drain.backlog.merge import StateRow
from drain.protocol import DrainQuery
from tests.simulation.backlog_checker import BacklogChecker
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.plan import plan_of
from tests.simulation.play import play
from tests.simulation.test_invariant_checker import CheckedLedger

SEALED = frozenset({0})


@pytest.fixture
async def ledger(tmp_path: Path) -> CheckedLedger:
    """A segment that was read to its end and split."""
    found = CheckedLedger(tmp_path)
    found.read_parent()
    return found


def drained(ledger: CheckedLedger, seek_generation: int = 0) -> frozenset[int]:
    query = DrainQuery(0, ledger.orders, ledger.billing, seek_generation, SEALED, 1)
    return frozenset(ledger.checker.backlogs.drained_segments(ledger.checker.states[0], query))


@pytest.mark.parametrize("wrong", [{"end_offset": 9, "sealed_end_offset": 9}, {"sealed_end_offset": None}], ids=repr)
async def test_a_wrong_count_of_a_segment_is_found(ledger: CheckedLedger, wrong: dict[str, int | None]) -> None:
    drained(ledger)
    known = ledger.checker.backlogs.counted

    def changed(row: StateRow) -> StateRow:
        return replace(row, **wrong) if (row.subscription_id, row.segment) == (None, 0) else row

    known[0] = tuple(map(changed, known[0]))
    with pytest.raises(BrokenPromiseError, match="segment 0 is counted as"):
        drained(ledger)


@pytest.mark.simulation
def test_a_wrong_count_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader takes an error of a drain check for one of Spark, and asks again."""
    monkeypatch.setattr(BacklogChecker, "_compare", Mock(side_effect=BrokenPromiseError("counted wrongly")))
    with pytest.raises(BrokenPromiseError, match="counted wrongly"):
        play(plan_of(2))
