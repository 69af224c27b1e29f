"""Quotas as values: which limits a user has, and what its rates allow."""

import math

import pytest

from headgate.model import entries as e
from headgate.protocol.requests import RegisterConsumer
from shard.access import quotas
from shard.access.quotas import UNLIMITED, Limits, count_of, growth_of, judge_joining, keep_within_quotas
from shard.requests.topic_commands import merge_entry, split_entry
from shard.subscriptions.refusal import Refusal
from tests.support.worlds.command_shard import CommandShard

TEN = quotas.Limits(requests_per_second=10, bytes_per_second=1000)


def spent(requests: int, size_bytes: int = 1, limits: quotas.Limits = TEN, now: float = 100.0) -> quotas.Spending:
    spending = quotas.Spending(limits=limits)
    for _ in range(requests):
        spending = spending.request(size_bytes, now)
    return spending


@pytest.mark.parametrize(
    ("of_roles", "own", "topics"),
    [
        ([], {}, 1000),
        ([{"topics": 7}], {}, 7),
        ([{"topics": 7}, {"topics": 9}], {}, 9),
        ([{"topics": 9}, {"topics": 7}], {}, 9),
        ([{"topics": 9}, {}], {"topics": 3}, 3),
        ([{"topics": math.inf}], {}, math.inf),
    ],
)
def test_a_users_own_limit_comes_before_its_most_generous_role_and_that_before_the_default(of_roles, own, topics):
    assert topics == quotas.limits_of_user(quotas.DEFAULT_LIMITS, of_roles, own).topics


def test_every_quota_has_a_limit() -> None:
    assert all(quotas.DEFAULT_LIMITS.of(quota) > 0 for quota in quotas.QUOTAS)
    assert {math.inf} == {quotas.UNLIMITED.of(quota) for quota in quotas.QUOTAS}


def test_a_burst_is_not_delayed_and_a_debt_is_paid_by_waiting() -> None:
    assert spent(10).debt_seconds(100.0) <= 0
    assert spent(11).debt_seconds(100.0) == pytest.approx(0.1)
    assert spent(15).debt_seconds(100.5) <= 0
    assert spent(15).debt_seconds(100.4) == pytest.approx(0.1)


def test_idle_time_saves_no_more_than_a_burst() -> None:
    earlier = spent(1, now=0.0)
    for _ in range(11):
        earlier = earlier.request(1, 100.0)

    assert earlier.debt_seconds(100.0) == pytest.approx(0.1)


def test_the_longest_debt_decides() -> None:
    assert "requests_per_second" == spent(25).exceeded(100.0)
    assert "bytes_per_second" == spent(5, size_bytes=500).exceeded(100.0)


def test_a_request_is_refused_beyond_the_longest_delay_and_accepted_again_later() -> None:
    most = int((quotas.BURST_SECONDS + quotas.MAX_DELAY_SECONDS) * 10)

    assert spent(most).exceeded(100.0) is None
    assert spent(most + 1).exceeded(100.0) is not None
    assert spent(most + 1).exceeded(100.2) is None


def test_a_request_larger_than_a_burst_is_accepted_too() -> None:
    """Otherwise it could never be sent."""
    assert spent(1, size_bytes=60_000).exceeded(101.0) == "bytes_per_second"
    assert spent(1, size_bytes=60_000).exceeded(158.1) is None


def test_an_unlimited_rate_costs_nothing() -> None:
    assert spent(1000, size_bytes=10**9, limits=quotas.UNLIMITED).debt_seconds(100.0) <= -quotas.BURST_SECONDS


def test_what_was_sent_counts_at_the_present_rate() -> None:
    owing, doubled = spent(1, size_bytes=60_000), TEN.changed({"bytes_per_second": 2000})
    assert [60, 30, 0] == [
        round(owing.under(limits, 100.0).bytes_until - 100) for limits in (TEN, doubled, quotas.UNLIMITED)
    ]
    assert quotas.UNLIMITED == owing.under(quotas.UNLIMITED, 100.0).limits
    assert spent(9, limits=quotas.UNLIMITED).under(TEN, 100.0).debt_seconds(100.0) <= 0


def test_so_many_refusals_are_answered() -> None:
    spending, answered = quotas.Spending(), 0
    for _ in range(2 * int(quotas.MAX_REFUSALS_PER_SECOND)):
        if spending.may_answer_refusal(100.0):
            spending, answered = spending.refusal(100.0), answered + 1

    assert answered == pytest.approx(quotas.MAX_REFUSALS_PER_SECOND, abs=1)
    assert [False, True] == [spending.may_answer_refusal(at) for at in (100.0, 100.1)]


def test_a_refusal_adds_nothing_to_the_debt() -> None:
    """A user whose every request is refused is accepted again once it has paid."""
    refused = owing = spent(25)
    for _ in range(100):
        refused = refused.refusal(100.0)

    assert refused.debt_seconds(100.0) == owing.debt_seconds(100.0)


def test_the_text_says_what_is_exceeded_and_what_to_do() -> None:
    assert quotas.exceeded_text("shop", "topics", 5, 5) == (
        "user shop has 5 topics on this shard, and its quota topics is 5: delete some, or raise the quota in the access "
        "file"
    )
    assert quotas.exceeded_text("shop", "requests_per_second", 5) == (
        "user shop exceeds its quota requests_per_second of 5 on this daemon: send less, or raise the quota in the "
        "access file"
    )


IDS = {"topic_id": 1, "subscription_id": 2}
TEN_MINUTES_MS = 600_000


def topic(topic_id: int, name: str, user: str, segments: int = 2) -> e.TopicCreated:
    return e.TopicCreated(topic_id=topic_id, topic=name, segments=segments, token=name, user=user)


def imported(topic_id: int, labels: str, user: str) -> e.TopicImported:
    segments = [e.ImportedSegment(segment=number, label=label) for number, label in enumerate(labels)]
    return e.TopicImported(
        topic_id=topic_id, topic="kinesis", token="i", segments=segments, positions="opaque", user=user
    )


def opened(producer_id: int, user: str = "shop", name: str | None = None, replaced: int | None = None):
    return e.ProducerOpened(
        producer_id=producer_id, producer_epoch=0, token=f"p{producer_id}", user=user, name=name, replaced_id=replaced
    )


def registered(consumer: str, user: str) -> e.ConsumerRegistered:
    return e.ConsumerRegistered(**IDS, consumer=consumer, incarnation=1, client_id=f"{user}/client-{consumer}")


@pytest.fixture
def shard() -> CommandShard:
    """A topic and a subscription of shop, with consumers of shop and of billing."""
    created = e.SubscriptionCreated(
        **IDS, subscription="s", subscription_type="STREAM", order="strict", positions={}, user="billing"
    )
    return CommandShard(
        topic(1, "orders", "shop"), created, registered("c1", "shop"), registered("c2", "billing"), opened(10)
    )


def limits_of(**of_shop: float):
    limits = {"shop": UNLIMITED.changed(of_shop)}
    return lambda user: limits.get(user, Limits())


def within(
    shard: CommandShard, entries: list[e.AnyEntry], *, age_ms: int = TEN_MINUTES_MS, durable: int = 100, **of_shop: int
):
    return keep_within_quotas(entries, shard.state, limits_of(**of_shop), age_ms=lambda _: age_ms, durable=durable)


def test_entries_are_paid_for_by_their_owners(shard: CommandShard) -> None:
    orders = shard.state.topics["orders"]
    shard.apply(imported(5, "ab", "alice"))
    split, merged = split_entry(orders, 0, token="s"), merge_entry(orders, 0, 1, token="m")
    extended = e.LayoutExtended(topic_id=5, token="x", created=[e.ImportedSegment(segment=9, label="c")], sealed={})

    created = e.SubscriptionCreated(
        topic_id=5,
        subscription_id=8,
        subscription="s",
        subscription_type="QUEUE",
        order="none",
        positions={},
        user="rival",
    )
    growth = growth_of(
        [topic(6, "new", "rival", 3), imported(7, "abc", "carol"), split, merged, extended, created], shard.state
    )

    of_rival = {("rival", "topics"): 1, ("rival", "segments"): 3, ("rival", "subscriptions"): 1}
    of_carol = {("carol", "topics"): 1, ("carol", "segments"): 3}
    assert growth == of_rival | of_carol | {("shop", "segments"): 3, ("alice", "segments"): 1}


def test_a_new_producer_counts_and_another_incarnation_does_not(shard: CommandShard) -> None:
    assert {("shop", "producers"): 1} == growth_of([opened(11)], shard.state)
    assert not growth_of([opened(10)], shard.state)
    assert not growth_of([opened(12, replaced=10)], shard.state)


def test_growth_up_to_the_quota_is_allowed(shard: CommandShard) -> None:
    entries = [topic(6, "new", "shop")]

    assert entries is within(shard, entries, topics=2, segments=4)
    refusal = within(shard, entries, topics=1, segments=4)
    assert refusal == Refusal(
        "quota_exceeded",
        "user shop has 1 topics on this shard, and its quota topics is 1: delete some, or raise the quota in the access "
        "file",
        after_barrier=True,
        quota="topics",
    )
    assert "segments" == within(shard, entries, topics=2, segments=3).quota


def test_what_adds_nothing_is_allowed_above_the_quota(shard: CommandShard) -> None:
    shard.apply(imported(5, "ab", "shop"))
    only_seals = e.LayoutExtended(topic_id=5, token="x", created=[], sealed={0: 0})
    entries = [e.TopicDeleted(topic_id=1, token="d"), opened(10), only_seals]

    assert entries is within(shard, entries, topics=0, segments=0, producers=0)


def joining(consumer: str, subscription: str = "s") -> RegisterConsumer:
    return RegisterConsumer(
        topic="orders", subscription=subscription, consumer=consumer, incarnation=1, subscription_type="STREAM"
    )


@pytest.mark.parametrize(
    ("request_", "limits", "quota"),
    [
        (joining("c3"), {"consumers": 2}, None),
        (joining("c3"), {"consumers": 1}, "consumers"),
        (joining("c1"), {"consumers": 0}, None),
        (joining("c3"), {"subscriptions": 0}, None),
        (joining("c3", "other"), {"subscriptions": 1}, None),
        (joining("c3", "other"), {"subscriptions": 0}, "subscriptions"),
    ],
    ids=["within", "beyond", "returning", "existing", "another within", "another beyond"],
)
def test_a_consumer_and_its_subscription_are_paid_for_by_who_registers(shard, request_, limits, quota):
    refusal = judge_joining(request_, "shop", shard.state, limits_of(**limits))

    assert quota == (None if refusal is None else refusal.quota)


def test_owners_are_counted(shard: CommandShard) -> None:
    counted = {
        (user, quota): count_of(shard.state, user, quota)
        for user in ("shop", "billing")
        for quota in ("topics", "segments", "subscriptions", "consumers", "producers")
        if count_of(shard.state, user, quota)
    }

    assert counted == {
        ("shop", "topics"): 1,
        ("shop", "segments"): 2,
        ("shop", "consumers"): 1,
        ("shop", "producers"): 1,
        ("billing", "subscriptions"): 1,
        ("billing", "consumers"): 1,
    }


def test_a_rate_is_no_number_of_objects(shard: CommandShard) -> None:
    with pytest.raises(AssertionError, match="requests_per_second is no number of objects"):
        count_of(shard.state, "shop", "requests_per_second")


def test_an_idle_producer_gives_way_to_a_new_one(shard: CommandShard) -> None:
    """Programs that end leave their identity behind; a restart must not fail for that."""
    shard.apply(opened(11), opened(12, name="loader"))
    expired = e.ProducersExpired(producer_ids=[10])

    assert [opened(13)] == within(shard, [opened(13)], producers=4, age_ms=0)
    assert (expired, opened(13)) == within(shard, [opened(13)], producers=3)
    # The quota was lowered: both anonymous ones give way.
    assert (e.ProducersExpired(producer_ids=[10, 11]), opened(13)) == within(
        shard, [opened(13)], producers=2, durable=shard.state.chunk
    )


@pytest.mark.parametrize(
    ("producers", "age_ms", "durable"), [(3, TEN_MINUTES_MS - 1, 100), (3, TEN_MINUTES_MS, 0), (1, TEN_MINUTES_MS, 100)]
)
def test_a_producer_in_use_does_not_give_way(shard: CommandShard, producers: int, age_ms: int, durable: int) -> None:
    shard.apply(opened(11), opened(12, name="loader"))

    assert "producers" == within(shard, [opened(13)], producers=producers, age_ms=age_ms, durable=durable).quota


def test_a_producer_of_another_user_does_not_give_way(shard: CommandShard) -> None:
    shard.apply(opened(11, user="rival"), e.ProducersExpired(producer_ids=[10]))

    assert isinstance(within(shard, [opened(13)], producers=0), Refusal)
