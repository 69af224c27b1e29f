"""Why a consumer has no segment. The reasons of real assignments: tests/coordinator/test_coordinator_sharing.py."""

import pytest

from headgate.model.bucket_ranges import BucketRange
from headgate.model.entries import SubscriptionType
from shard.reporting.idle_reasons import idle_reasons
from shard.state.consumers import RegisteredConsumer
from shard.state.holdings import Holding
from shard.state.subscription import Subscription
from shard.subscriptions.gate import Gate


def idle(gate: Gate, **supports_bucket_ranges: bool) -> dict[str, str]:
    """Return the reasons in a subscription whose first consumer holds segment 0, if that is readable."""
    subscription = Subscription(1, "t", 2, "s", SubscriptionType.STREAM, "strict")
    for name, supports in supports_bucket_ranges.items():
        subscription.consumers[name] = RegisteredConsumer(name, 1, name, supports_bucket_ranges=supports)
    for segment in gate.grantable:
        subscription.holdings[segment] = Holding(next(iter(supports_bucket_ranges)), 1)
    return idle_reasons(subscription, gate)


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (Gate((), {1: (0,), 2: (0,)}, frozenset()), "all 2 segments are blocked"),
        (Gate((), {}, frozenset({0})), "all segments are drained"),
    ],
    ids=["blocked", "drained"],
)
def test_without_a_readable_segment_all_consumers_have_the_same_reason(gate: Gate, reason: str) -> None:
    assert idle(gate, ada=True, bob=False) == {"ada": reason, "bob": reason}


@pytest.mark.parametrize("segments", [(0,), (0, 1)], ids=["one", "two"])
def test_a_client_that_cannot_share_is_the_reason_and_not_a_load_while_segments_are_balanced_by_count(
    segments: tuple[int, ...],
) -> None:
    reasons = idle(Gate(segments, {}, frozenset()), ada=True, bob=False)

    assert reasons == {"bob": "its client reads whole segments only, and each has a consumer"}


def test_a_single_bucket_without_a_holder_is_about_to_be_assigned() -> None:
    subscription = Subscription(1, "t", 2, "s", SubscriptionType.STREAM, "strict")
    for name in ("ada", "bob"):
        subscription.consumers[name] = RegisteredConsumer(name, 1, name, supports_bucket_ranges=True)
    subscription.holdings[BucketRange(0, 0, 15)] = Holding("ada", 1)

    reasons = idle_reasons(subscription, Gate((0,), {}, frozenset()))
    assert reasons == {"bob": "a segment is moving between consumers"}
