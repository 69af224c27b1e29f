"""`headgate explain` and `headgate plan`: requests and output."""

from headgate.protocol.requests import PlanChanges
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster


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


def test_a_merge_that_is_not_a_pair_is_wrong_usage(invoke: Invoke, cluster: FakeCluster):
    result = invoke("plan", "orders", "billing", "--merge", "4")

    assert result.exit_code == 2
    assert "'4'" in result.stderr
    assert cluster.calls == []
