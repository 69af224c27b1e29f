"""The drain poller in virtual time, rule by rule, then races around close and failures."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from coordinator.drain_monitor import DrainPoller
from metrics.label_values import PollOutcome
from shard.subscriptions.two_witnesses import DrainClaim
from tests.support.worlds.subscription_environment import SETTINGS as COORDINATOR

NOTHING: frozenset[int] = frozenset()
SETTINGS = replace(COORDINATOR, poll_min_seconds=2.0, poll_max_seconds=900.0, poll_check_timeout_seconds=10.0)


class PollerHarness:
    """A poller whose calls are recorded."""

    def __init__(self) -> None:
        self.pending = frozenset({1, 2})
        self.checked_at: list[float] = []
        self.drained: list[frozenset[int]] = []
        self.outcomes: list[str] = []
        self.result: Callable[[frozenset[int]], Awaitable[frozenset[int]]] = self.nothing
        self.poller = DrainPoller(
            pending=lambda: self.pending,
            check=self.check,
            on_answer=self.on_answer,
            on_poll=self.outcomes.append,
            settings=SETTINGS,
            chance=lambda: 1.0,
            name="orders/billing",
        )

    async def check(self, segments: frozenset[int]) -> dict[int, DrainClaim]:
        self.checked_at.append(asyncio.get_running_loop().time())
        return dict.fromkeys(await self.result(segments), DrainClaim(5))

    async def nothing(self, segments: frozenset[int]) -> frozenset[int]:
        return NOTHING

    def on_answer(self, claims: Mapping[int, DrainClaim]) -> PollOutcome:
        if claims:
            self.drained.append(frozenset(claims))
            self.pending -= claims.keys()
        return "drained" if claims else "waiting"


@pytest.fixture
async def harness():
    harness = PollerHarness()
    yield harness
    await harness.poller.close()


async def test_rule_1_the_pause_doubles_from_two_seconds_to_fifteen_minutes(harness: PollerHarness) -> None:
    harness.poller.reset()
    await asyncio.sleep(4000)

    assert [2, 6, 14, 30, 62, 126, 254, 510, 1022, 1922, 2822, 3722] == harness.checked_at


async def test_rule_2_reset_cancels_the_sleep_and_restarts_at_the_shortest_pause(harness: PollerHarness) -> None:
    """Resetting only the pause is not enough: the long sleep has already started."""
    harness.poller.reset()
    await asyncio.sleep(1030)  # asleep until 1922
    harness.poller.reset()
    await asyncio.sleep(15)

    assert [1032, 1036, 1044] == harness.checked_at[-3:]


async def test_rule_2_a_drained_segment_restarts_at_the_shortest_pause(harness: PollerHarness) -> None:
    harness.poller.reset()
    await asyncio.sleep(15)
    harness.result = lambda segments: asyncio.sleep(0, segments - {2})
    await asyncio.sleep(20)

    assert [2, 6, 14, 30, 32] == harness.checked_at


async def test_rule_2_continuous_progress_does_not_postpone_a_poll(harness: PollerHarness) -> None:
    for _ in range(10):
        harness.poller.reset()
        await asyncio.sleep(0.5)

    assert [2, 4.5] == harness.checked_at


async def test_rule_3_poll_now_wakes_the_poller_and_restarts_at_the_shortest_pause(harness: PollerHarness) -> None:
    harness.poller.reset()
    await asyncio.sleep(40)
    harness.poller.poll_now()
    await asyncio.sleep(7)

    assert [40, 42, 46] == harness.checked_at[-3:]


async def test_rules_3_and_4_poll_now_during_a_check_starts_one_more_after_it(harness: PollerHarness) -> None:
    harness.result = lambda segments: asyncio.sleep(5, NOTHING)
    harness.poller.poll_now()
    await asyncio.sleep(1)
    harness.poller.poll_now()
    harness.poller.poll_now()
    await asyncio.sleep(10)

    assert [0, 5] == harness.checked_at


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), ValueError("a bug"), asyncio.CancelledError()])
@pytest.mark.parametrize("seconds", [0, 1])
async def test_rule_4_a_check_that_raises_means_not_drained_yet(harness, error: BaseException, seconds: int) -> None:
    async def result(segments: frozenset[int]) -> frozenset[int]:
        if seconds:
            await asyncio.sleep(seconds)
        raise error

    harness.result = result
    harness.poller.reset()
    with capture_logs() as logs:
        await asyncio.sleep(9)

    assert ["failed", "failed"] == harness.outcomes
    assert [] == harness.drained
    problem = str(error) or "the last one was cancelled"
    assert problem == harness.poller.problem
    assert [("drain_poll.failed", problem)] * 2 == [(each["event"], each["reason"]) for each in logs]


async def test_rule_4_a_check_that_hangs_times_out_and_is_repeated(harness: PollerHarness) -> None:
    harness.result = lambda segments: asyncio.sleep(10**6, frozenset({1}))
    harness.poller.reset()
    with capture_logs() as logs:
        await asyncio.sleep(13)
    assert "the last one took over 10 s (drain.run_timeout_seconds)" == harness.poller.problem
    timed_out = {"event": "drain_poll.timed_out", "log_level": "warning", "poller": "orders/billing", "seconds": 10}
    assert [timed_out] == logs
    harness.result = harness.nothing
    await asyncio.sleep(4)

    assert harness.poller.problem is None
    assert ["timed_out", "waiting"] == harness.outcomes
    assert [2, 16] == harness.checked_at
    assert [] == harness.drained


async def test_rule_5_the_poller_stops_without_pending_segments_and_reset_starts_it(harness: PollerHarness) -> None:
    harness.result = lambda segments: asyncio.sleep(0, segments)
    harness.poller.reset()
    await asyncio.sleep(1000)
    assert [2] == harness.checked_at
    assert not harness.poller.running

    harness.pending = frozenset({3})
    harness.poller.reset()
    await asyncio.sleep(3)
    assert [2, 1002] == harness.checked_at


@pytest.mark.parametrize("begin", ["reset", "poll_now"])
async def test_rule_5_the_poller_does_not_start_without_pending_segments(harness: PollerHarness, begin: str) -> None:
    harness.pending = NOTHING
    getattr(harness.poller, begin)()
    assert not harness.poller.running


async def test_rule_5_a_check_covers_the_segments_pending_at_its_start(harness: PollerHarness) -> None:
    harness.result = lambda segments: asyncio.sleep(0, segments)
    harness.poller.reset()
    await asyncio.sleep(1)
    harness.pending = frozenset({9})
    await asyncio.sleep(2)

    assert [{9}] == harness.drained


async def test_rule_6_close_ends_a_sleep_permanently(harness: PollerHarness) -> None:
    harness.poller.reset()
    await asyncio.sleep(1)
    await harness.poller.close()
    harness.poller.reset()
    harness.poller.poll_now()
    await asyncio.sleep(100)

    assert [] == harness.checked_at
    assert not harness.poller.running


async def test_rule_6_close_cancels_a_running_check_and_waits_for_it(harness: PollerHarness) -> None:
    ended_at = []

    async def result(segments: frozenset[int]) -> frozenset[int]:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0.5)
            ended_at.append(asyncio.get_running_loop().time())
        return segments

    harness.result = result
    harness.poller.reset()
    await asyncio.sleep(3)
    await harness.poller.close()

    assert [3.5] == ended_at
    assert [] == harness.drained
    assert [] == harness.outcomes


async def test_an_exception_in_on_answer_reaches_the_owner(harness: PollerHarness) -> None:
    """It does not count as a failed check, and polling stops."""
    harness.poller.on_answer = Mock(side_effect=AssertionError("a bug"))
    harness.result = lambda segments: asyncio.sleep(0, segments)
    harness.poller.raise_failure()
    harness.poller.poll_now()
    await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="a bug"):
        harness.poller.raise_failure()
    with pytest.raises(AssertionError, match="a bug"):
        harness.poller.reset()
    assert not harness.poller.running


async def test_the_time_until_the_next_poll_is_known(harness: PollerHarness) -> None:
    assert harness.poller.next_poll_seconds is None
    harness.result = lambda segments: asyncio.sleep(5, NOTHING)
    harness.poller.reset()
    found = []
    for _ in range(3):
        await asyncio.sleep(0.75)
        found.append(harness.poller.next_poll_seconds)

    assert [1.25, 0.5, 0.0] == found, "the last one during a check"
