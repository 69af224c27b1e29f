"""Which moves a daemon starts: each rule, with times as values."""

import pytest

from controller.leadership.policy.spread import Abandoned, History, Move, abandonments, startable
from metrics.label_values import TransferReason

MAX_IN_FLIGHT = 4
SPREAD_BUDGET = 16
BUDGET_SECONDS = 60.0
RETRY_SECONDS = 10.0
MAX_RETRY_SECONDS = 160.0
START_SECONDS = 30.0
TERM_SECONDS = 5.0
MAX_UNPACED = 16
NOW = 1000.0
SETTLE_SECONDS = 30.0
LED = dict.fromkeys(range(10), NOW - 500)


def moves(reason: TransferReason, shards: int = 10, source: str = "a") -> list[Move]:
    return [Move(shard, source, "b", reason) for shard in range(shards)]


def started(reason: TransferReason, **history: object) -> list[int]:
    known = History(**{"led_since": LED, "started_at": 0.0} | history)
    return [each.shard for each in startable(moves(reason), "a", known, NOW, settle_seconds=SETTLE_SECONDS)]


def test_one_shard_after_the_other_is_spread() -> None:
    """Rule 1."""
    assert started("spread") == [0]
    assert started("spread", in_flight=frozenset({5})) == []


def test_a_budget_limits_how_many_shards_are_spread() -> None:
    """Rule 1. Transfers of long ago do not count."""
    recent = [NOW - BUDGET_SECONDS / 2] * (SPREAD_BUDGET - 1)

    assert started("spread", spread_at=recent) == [0]
    assert started("spread", spread_at=[*recent, NOW]) == []
    assert started("spread", spread_at=[*recent, NOW - BUDGET_SECONDS + 0.5]) == []
    assert started("spread", spread_at=[*recent, NOW - BUDGET_SECONDS]) == [0]


@pytest.mark.parametrize("reason", ["maintenance", "shutdown"])
def test_a_daemon_that_gives_all_its_shards_away_has_several_transfers_in_flight(reason: TransferReason) -> None:
    """Rule 3: without a budget."""
    assert started(reason, spread_at=[NOW] * SPREAD_BUDGET) == list(range(MAX_IN_FLIGHT))
    assert started(reason, in_flight=frozenset({0, 1})) == [2, 3]


def test_a_young_leader_is_not_spread_and_stops_at_once() -> None:
    """Rule 2."""
    young = dict.fromkeys(range(2), NOW - SETTLE_SECONDS + 1) | {2: NOW - SETTLE_SECONDS}

    assert started("spread", led_since=young) == [2]
    assert started("shutdown", led_since=young) == [0, 1, 2]


@pytest.mark.parametrize("reason", ["spread", "maintenance"])
@pytest.mark.parametrize(
    ("count", "pause"), [(1, RETRY_SECONDS), (2, 2 * RETRY_SECONDS), (4, 8 * RETRY_SECONDS), (10**6, MAX_RETRY_SECONDS)]
)
def test_an_abandoned_transfer_is_repeated_after_a_growing_pause(reason: TransferReason, count: int, pause: float):
    """Rule 4."""
    led = {0: 0.0}

    assert started(reason, led_since=led, abandoned={(0, "b"): Abandoned(count, NOW - pause + 1)}) == []
    assert started(reason, led_since=led, abandoned={(0, "b"): Abandoned(count, NOW - pause)}) == [0]


def test_a_stopping_daemon_tries_the_same_successor_again_after_all_others() -> None:
    """Rule 4: shards that were not tried do not wait behind those that were."""
    abandoned = {(0, "b"): Abandoned(2, NOW), (1, "b"): Abandoned(1, NOW)}

    assert started("shutdown", abandoned=abandoned) == [2, 3, 4, 5]
    assert started("shutdown", led_since=dict.fromkeys(range(3), 0.0), abandoned=abandoned) == [2, 1, 0]
    abandoned[1, "c"] = Abandoned(4, NOW)
    assert abandonments(abandoned, 1, leaving=False) == {"b": 1, "c": 4}
    assert abandonments(abandoned, 7, leaving=True) == {"b": 3, "c": 4}


def test_a_daemon_starts_only_transfers_of_shards_that_it_leads() -> None:
    assert startable(moves("shutdown", source="b"), "a", History(LED, 0.0), NOW, settle_seconds=SETTLE_SECONDS) == []
    assert started("shutdown", led_since={}) == []


def test_shards_without_topics_are_spread_at_once() -> None:
    """Rule 5: together, without a budget, and soon after their terms began."""
    spent = [NOW] * SPREAD_BUDGET

    assert started("spread", spread_at=spent, without_topics=frozenset({2, 5, 7})) == [2, 5, 7]
    young, old = (dict.fromkeys(range(3), NOW - TERM_SECONDS + seconds) for seconds in (1, 0))
    assert started("spread", without_topics=frozenset(young), led_since=young) == []
    assert started("spread", without_topics=frozenset({0}), led_since=old) == [0]
    # A transfer of another shard waits for them.
    assert started("spread", without_topics=frozenset({0})) == [0]


def test_a_daemon_that_has_just_started_spreads_all_shards_at_once() -> None:
    """Rule 5."""
    young = dict.fromkeys(range(40), NOW - TERM_SECONDS)
    settled_since = NOW - SETTLE_SECONDS - START_SECONDS

    def number(started_at: float, in_flight: int = 0, reason: TransferReason = "spread") -> int:
        history = History(young, started_at, in_flight=frozenset(range(in_flight)), spread_at=[NOW] * SPREAD_BUDGET)
        return len(startable(moves(reason, 40), "a", history, NOW, settle_seconds=SETTLE_SECONDS))

    assert number(settled_since + 1) == MAX_UNPACED
    assert number(settled_since + 1, in_flight=10) == MAX_UNPACED - 10
    assert number(settled_since) == 0
    assert number(settled_since + 1, reason="shutdown") == MAX_IN_FLIGHT
