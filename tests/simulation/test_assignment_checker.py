"""Each way to divide segments wrongly is found."""

import pytest

from headgate.model.bucket_ranges import SegmentSlice, slice_of
from headgate.model.entries import SubscriptionType
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.layout import Layout
from shard.state.subscription import Holding, RegisteredConsumer, Subscription
from tests.simulation.assignment_checker import uneven

HALF, QUARTER = KEY_BUCKETS // 2, KEY_BUCKETS // 4


def problem(holders: dict[SegmentSlice, str], *, old: str = "", idle: str = "") -> str | None:
    """Judge two segments; the consumers with the names in ``old`` read whole segments only, those in ``idle`` hold none."""
    subscription = Subscription(1, "orders", 2, "billing", SubscriptionType.STREAM, "strict")
    for name in sorted({*holders.values(), *old, *idle}):
        subscription.consumers[name] = RegisteredConsumer(name, 1, name, supports_bucket_ranges=name not in old)
    for generation, (held, name) in enumerate(holders.items(), start=1):
        subscription.holdings[held] = Holding(name, generation)
    return uneven(subscription, Layout.initial(2, at_ms=0))


def quarters(segment: int, names: str) -> dict[SegmentSlice, str]:
    return {slice_of(segment, QUARTER * number, QUARTER * (number + 1)): name for number, name in enumerate(names)}


def halves(segment: int, names: str) -> dict[SegmentSlice, str]:
    return {slice_of(segment, HALF * number, HALF * (number + 1)): name for number, name in enumerate(names)}


@pytest.mark.parametrize(
    ("holders", "old", "idle", "text"),
    [
        ({0: "a", 1: "b"}, "", "", None),
        ({0: "a", 1: "a"}, "", "b", "consumers hold"),
        ({0: "a", **halves(1, "bc")}, "", "", None),
        ({0: "a", **quarters(1, "bcde")}, "", "", f"slices of {QUARTER} to {KEY_BUCKETS} buckets"),
        ({0: "a", 1: "b"}, "", "c", "2 slices for 3 consumers"),
        ({0: "a", **halves(1, "bb")}, "", "", "are shared by 2 consumers"),
        ({0: "a", **halves(1, "bc")}, "a", "", None),
        ({0: "a", **halves(1, "bc")}, "ad", "", None),
        ({0: "a", **halves(1, "bc")}, "b", "", "held by consumers that read whole segments only"),
        (
            {**halves(0, "ab"), **halves(1, "ab")},
            "c",
            "",
            "1 consumers that read whole segments only have 0 of 2, not 1",
        ),
    ],
)
def test_what_is_uneven(holders: dict[SegmentSlice, str], old: str, idle: str, text: str | None) -> None:
    found = problem(holders, old=old, idle=idle)

    assert found is None if text is None else text in (found or "")
