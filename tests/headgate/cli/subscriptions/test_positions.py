"""`headgate subscription export` and `import`: requests, questions and refusals."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.protocol.requests import SeekSubscription
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster, InProcessContext, segment, subscription, topic


@pytest.fixture(autouse=True)
def orders(cluster: FakeCluster) -> None:
    """Create topic orders with subscription billing."""
    cluster.topics["orders"] = topic("orders", segment(0, 0, 65_535, next_offset=12), segment(1, 0, 9, next_offset=4))
    cluster.subscriptions.append(replace(subscription("orders", "billing"), point=(7, 99)))


WANTED = SeekSubscription("orders", "billing", "", positions=[(0, 5), (1, 0)], history=[(7, 99)], topic_id=1)


def test_exported_positions_can_be_imported(invoke: Invoke, cluster: FakeCluster, tmp_path: Path) -> None:
    exported = invoke("subscription", "export", "orders", "billing")
    assert json.loads(exported.stdout)["offsets"] == {"0": 5, "1": 0}

    for source in ((), ("-",)):
        imported = invoke("subscription", "import", "orders", "billing", *source, "--yes", stdin=exported.stdout)
        assert imported.exit_code == 0, imported.stderr
    file = tmp_path / "billing.json"
    file.write_text(exported.stdout)
    document = json.loads(invoke("subscription", "import", "orders", "billing", str(file), "--yes", "--json").stdout)

    assert document["seek_generation"] == 7
    assert cluster.calls == [WANTED] * 3


@pytest.mark.parametrize(("answer", "moved"), [("y\n", True), ("n\n", False)])
def test_a_person_is_asked_first(
    answer: str, moved: bool, invoke: Invoke, cluster: FakeCluster, context: InProcessContext, tmp_path: Path
) -> None:
    file = tmp_path / "billing.json"
    file.write_text(invoke("subscription", "export", "orders", "billing").stdout)
    context.is_terminal = True

    result = invoke("subscription", "import", "orders", "billing", str(file), stdin=answer)

    assert "3 delivered again" in result.stderr
    assert (WANTED in cluster.calls) == moved
    assert result.exit_code == (0 if moved else 1)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"offsets": {"1": 5}}, "segment 1 of topic 'orders' ends at 4"),
        ({"offsets": {"0": -1}}, "FILE: it holds no positions"),
    ],
    ids=["beyond the end", "negative"],
)
def test_positions_that_do_not_fit_move_nothing(
    changed: dict[str, object], reason: str, invoke: Invoke, cluster: FakeCluster
) -> None:
    saved = json.loads(invoke("subscription", "export", "orders", "billing").stdout)

    result = invoke("subscription", "import", "orders", "billing", "--yes", stdin=json.dumps(saved | changed))

    assert result.exit_code != 0
    assert reason in result.stderr
    assert cluster.calls == []


@pytest.mark.parametrize(("ends", "moves"), [({}, False), ({0: 6}, False), ({0: 5}, True)])
def test_unread_records_that_were_pruned_are_missed(
    ends: dict[int, int], moves: bool, invoke: Invoke, cluster: FakeCluster
) -> None:
    """Of a segment that ended where it had been read to, nothing is."""
    saved = invoke("subscription", "export", "orders", "billing").stdout
    cluster.topics["orders"], cluster.pruned_ends = topic("orders", segment(1, 0, 9, next_offset=4)), ends

    result = invoke("subscription", "import", "orders", "billing", "--yes", stdin=saved)

    refusal = "segment 0 of topic 'orders' was read up to offset 5, and pruned since"
    assert (moves, not moves) == (bool(cluster.calls), refusal in result.stderr)
