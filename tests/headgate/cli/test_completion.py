"""Shell completion of names, as the script of bash asks for it."""

from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from headgate.cli.main import main
from headgate.errors import NoLeaderError
from tests.headgate.cli.records.test_producer import info
from tests.support.fakes.cli_client import FakeAdmin, FakeCluster, InProcessContext, segment, subscription, topic


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    """Two topics, a subscription of each, and a producer."""
    cluster.topics = {name: topic(name, segment(0, 0, 0xFFFF)) for name in ("orders", "returns")}
    cluster.subscriptions += [subscription("orders", "billing"), subscription("returns", "audit")]
    cluster.producers = [info("import-1", shard=0), info("import-1", shard=3)]
    return cluster


def completions(context: InProcessContext, line: str) -> tuple[list[str], str]:
    """Return the completions of the last word of ``line``, and what is on standard error."""
    environment = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_HEADGATE_COMPLETE": "bash_complete",
    }
    result = CliRunner().invoke(main, [], prog_name="headgate", obj=context, env=environment)
    return [each.partition(",")[2] for each in result.stdout.splitlines() if each], result.stderr


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("headgate read ", ["orders", "returns"]),
        ("headgate topic describe o", ["orders"]),
        ("headgate produce x", []),
        ("headgate consume orders ", ["billing"]),
        ("headgate backlog show returns ", ["audit"]),
        ("headgate subscription delete orders b", ["billing"]),
        ("headgate subscription seek returns ", ["audit"]),
        ("headgate consumer list returns ", ["audit"]),
        ("headgate consumer evict orders billing ", ["reader-1"]),
        ("headgate explain orders billing --consumer r", ["reader-1"]),
        ("headgate explain orders --consumer r", []),
        ("headgate producer delete ", ["import-1"]),
        ("headgate topic create ", []),
    ],
)
def test_names_are_completed(line: str, names: list[str], context: InProcessContext, orders: FakeCluster):
    assert (names, "") == completions(context, line)


def test_a_cluster_that_does_not_answer_has_no_names_and_prints_nothing(
    context: InProcessContext, orders: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FakeAdmin, "list_topics", AsyncMock(side_effect=NoLeaderError("no broker")))

    assert ([], "") == completions(context, "headgate read ")
