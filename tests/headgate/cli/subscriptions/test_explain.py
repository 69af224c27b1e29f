"""`headgate explain` and `headgate plan`: requests and output."""

from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from headgate.protocol.requests import PlanChanges
from headgate.views.explanations import Plan, ProposedMove
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeAdmin, FakeCluster


def test_plan_sends_all_changes_at_once_and_prints_the_moves(invoke: Invoke, cluster: FakeCluster):
    result = invoke(
        *("plan", "orders", "billing", "--split", "0", "--split", "3", "--merge", "4,5"),
        *("--add-consumer", "c9", "--remove-consumer", "c1"),
    )

    assert result.exit_code == 0, result.stderr
    assert cluster.calls == [PlanChanges("orders", "billing", [0, 3], [(4, 5)], ["c9"], ["c1"])]
    assert "0000-3fff" in result.stdout
    assert "Moves when every sealed segment is drained:" in result.stdout
    assert "Moves at once:" not in result.stdout
    assert "nothing was changed" in result.stderr


def test_sentences_are_printed_below_their_headings(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    reasons = [SimpleNamespace(sentences=("Segment 3 is blocked.", "Segment 0 is not drained."))]
    explained = SimpleNamespace(summary=("All is well.",), segments=reasons, consumers=[])
    monkeypatch.setattr(FakeAdmin, "explain", asked := AsyncMock(return_value=explained))
    shown = invoke("explain", "orders", "billing", "--segment", "3").stdout

    assert shown == "All is well.\n\nSegments\n  Segment 3 is blocked.\n    Segment 0 is not drained.\n"
    asked.assert_awaited_once_with("orders", "billing", segment=3, consumer=None)


@pytest.mark.parametrize("moves", ["after_rebalance", "after_drain"])
def test_a_plan_says_whether_anything_moves(moves: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    planned = Plan(topic="orders", subscription="billing", created=(), after_rebalance=(), after_drain=(), consumers=())
    move = ProposedMove(segment=3, before="a", after=None)
    for found, says in ((planned, True), (replace(planned, **{moves: (move,)}), False)):
        monkeypatch.setattr(FakeAdmin, "plan", AsyncMock(return_value=found))
        assert says == ("no segment would move" in invoke("plan", "orders", "billing").stdout)


def test_a_merge_that_is_not_a_pair_is_wrong_usage(invoke: Invoke, cluster: FakeCluster):
    result = invoke("plan", "orders", "billing", "--merge", "4")

    assert result.exit_code == 2
    assert "'4'" in result.stderr
    assert cluster.calls == []
