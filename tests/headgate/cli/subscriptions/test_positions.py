"""`headgate subscription export` and `import`: requests, questions and refusals."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from headgate import ExternalSource, HeadgateError, SubscriptionInfo, SubscriptionType, TopicInfo
from headgate.cli.subscriptions.seek import (
    MAX_FILE_BYTES,
    SavedPositions,
    decode_positions,
    positions_to_restore,
    require_positions,
    saved_positions,
)
from headgate.protocol.requests import SeekSubscription
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeAdmin, FakeCluster, InProcessContext, segment, subscription, topic


@pytest.fixture(autouse=True)
def orders(cluster: FakeCluster) -> None:
    """Create topic orders with subscription billing."""
    cluster.topics["orders"] = topic("orders", segment(0, 0, 65_535, next_offset=12), segment(1, 0, 9, next_offset=4))
    cluster.subscriptions.append(replace(subscription("orders", "billing"), point=(7, 99)))


WANTED = SeekSubscription("orders", "billing", token="", positions=[(0, 5), (1, 0)], history=[(7, 99)], topic_id=1)


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
    assert (replace(WANTED, subscription_id=5) in cluster.calls) == moved, "of what was shown"
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


def test_positions_are_not_exported_as_those_of_a_topic_that_is_created_again_meanwhile(
    invoke: Invoke, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def described(*_: object) -> SubscriptionInfo:
        cluster.topics["orders"] = replace(cluster.topics["orders"], topic_id=2)
        return cluster.subscriptions[0]

    monkeypatch.setattr(FakeAdmin, "describe_subscription", described)
    exported = invoke("subscription", "export", "orders", "billing")
    assert ("", True) == (exported.stdout, "was deleted and created again" in exported.stderr)


BILLING = subscription("orders", "billing")
ORDERS = topic(
    "orders",
    segment(0, 0, 65_535, "sealed", next_offset=12, children=(1,)),
    segment(1, 0, 65_535, next_offset=4, parents=(0,)),
)
SAVED = saved_positions(ORDERS, BILLING, 1_700_000_000_000)
PRUNED = replace(ORDERS, segments=ORDERS.segments[1:])


def test_an_export_holds_what_an_import_checks() -> None:
    assert decode_positions(msgspec.json.encode(SAVED)) == SAVED
    assert positions_to_restore(SAVED, ORDERS, {}) == {0: 5, 1: 0}


def test_a_segment_that_is_created_after_the_export_starts_at_its_beginning() -> None:
    older = replace(BILLING, segments=BILLING.segments[:1])

    assert positions_to_restore(saved_positions(ORDERS, older, 0), ORDERS, {}) == {0: 5, 1: 0}


def test_a_segment_that_was_read_to_its_end_stays_there_or_may_be_pruned() -> None:
    whole = replace(SAVED, offsets={1: 0})

    assert positions_to_restore(whole, ORDERS, {}) == {0: 12, 1: 0}
    assert positions_to_restore(whole, PRUNED, {}) == {1: 0}
    assert positions_to_restore(SAVED, PRUNED, {0: 5}) == {1: 0}
    with pytest.raises(HeadgateError, match=r"segment 0 .* and pruned since.*; 'headgate subscription seek' moves"):
        positions_to_restore(SAVED, PRUNED, {})


@pytest.mark.parametrize(
    ("saved", "described", "reason"),
    [
        (SAVED, replace(ORDERS, topic="payments"), "is of topic 'orders', not of 'payments'"),
        (SAVED, replace(ORDERS, topic_id=2), "with the id 1, and the present one has the id 2"),
        (replace(SAVED, offsets={1: 5}), ORDERS, "segment 1 of topic 'orders' ends at 4"),
    ],
    ids=["another topic", "a topic created again", "beyond the end"],
)
def test_positions_that_do_not_fit_are_refused(saved: SavedPositions, described: TopicInfo, reason: str) -> None:
    with pytest.raises(HeadgateError, match=reason):
        positions_to_restore(saved, described, {})


@pytest.mark.parametrize(
    ("described", "of", "reason"),
    [
        (ORDERS, replace(BILLING, type=SubscriptionType.CHECKPOINT), "is of type CHECKPOINT"),
        (
            replace(ORDERS, external=ExternalSource(source="kinesis", positions="opaque", hash_bits=128)),
            BILLING,
            "reads an external topic",
        ),
    ],
    ids=["checkpoint", "external"],
)
def test_a_subscription_without_positions_is_refused(described: TopicInfo, of: SubscriptionInfo, reason: str) -> None:
    with pytest.raises(HeadgateError, match=reason):
        require_positions(described, of)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "holds no positions of 'headgate subscription export'"),
        (b"\xff\xfe", "holds no positions"),
        (b'{"format": "other"}', "holds no positions"),
        (b" " * (MAX_FILE_BYTES + 1), "is larger than 16777216 bytes"),
    ],
    ids=["empty", "no text", "another format", "too large"],
)
def test_a_file_that_cannot_be_read_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_positions(data)
