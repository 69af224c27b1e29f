"""The drain poller in virtual time: rule by rule, then the races that bit others."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest

from coordinator.drain_poller import DrainPoller

pytestmark = pytest.mark.looptime

NOTHING: frozenset[int] = frozenset()


class NoJitter(random.Random):
    def random(self) -> float:
        return 1.0


class PollerHarness:
    """A poller with everything around it written down."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.pending = frozenset({1, 2})
        self.asked_at: list[float] = []
        self.drained: list[frozenset[int]] = []
        self.outcomes: list[str] = []
        self.answer: Callable[[frozenset[int]], Awaitable[frozenset[int]]] = self.nothing
        self.poller = DrainPoller(
            pending=lambda: self.pending,
            check=self.check,
            on_drained=self.on_drained,
            on_poll=self.outcomes.append,
            min_seconds=2,
            max_seconds=900,
            check_timeout_seconds=10,
            rng=rng or NoJitter(),
            name="orders/billing",
        )

    def check(self, segments: frozenset[int]) -> Awaitable[frozenset[int]]:
        self.asked_at.append(asyncio.get_running_loop().time())
        return self.answer(segments)

    async def nothing(self, segments: frozenset[int]) -> frozenset[int]:
        return NOTHING

    def on_drained(self, segments: frozenset[int]) -> None:
        self.drained.append(segments)
        self.pending -= segments


@pytest.fixture
async def harness():
    harness = PollerHarness()
    yield harness
    await harness.poller.close()


class UncancellableCheck:
    """A check that ignores its cancellation until it is let go."""

    def __init__(self) -> None:
        self._released = asyncio.Event()

    async def __call__(self, segments: frozenset[int]) -> frozenset[int]:
        while not self._released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._released.wait()
        return segments

    def finish(self) -> None:
        self._released.set()


@pytest.fixture
async def uncancellable():
    """Let go in any case: a loop does not close before its tasks have ended."""
    uncancellable = UncancellableCheck()
    yield uncancellable
    uncancellable.finish()


async def test_rule_1_the_pause_doubles_from_two_seconds_to_fifteen_minutes(harness: PollerHarness) -> None:
    harness.poller.reset()
    await asyncio.sleep(4000)

    assert [2, 6, 14, 30, 62, 126, 254, 510, 1022, 1922, 2822, 3722] == harness.asked_at


async def test_rule_1_jitter_takes_up_to_a_tenth_but_never_goes_below_the_shortest() -> None:
    harness = PollerHarness(random.Random(7))
    harness.poller.reset()
    await asyncio.sleep(4000)
    await harness.poller.close()
    pauses = [after - before for before, after in zip([0.0, *harness.asked_at], harness.asked_at, strict=False)]

    assert 2 == pauses[0]
    for pause, full in zip(pauses[1:9], [4, 8, 16, 32, 64, 128, 256, 512], strict=True):
        assert 0.9 * full <= pause < full


async def test_rule_2_reset_cancels_a_long_sleep_and_starts_again_at_the_shortest_pause(harness: PollerHarness) -> None:
    """Resetting the pause alone would not be enough: the long sleep has begun already."""
    harness.poller.reset()
    await asyncio.sleep(1030)  # asleep until 1922
    harness.poller.reset()
    await asyncio.sleep(15)

    assert [1032, 1036, 1044] == harness.asked_at[-3:]


async def test_rule_2_progress_that_keeps_coming_does_not_put_a_poll_off(harness: PollerHarness) -> None:
    for _ in range(10):
        harness.poller.reset()
        await asyncio.sleep(0.5)

    assert [2, 4.5] == harness.asked_at


async def test_rule_2_reset_while_a_check_is_in_flight_shortens_the_pause_after_it(harness: PollerHarness) -> None:
    harness.answer = lambda segments: asyncio.sleep(5, NOTHING)
    harness.poller.reset()
    await asyncio.sleep(30)  # asked at 2, 11, 24 (pauses 2, 4, 8 and 5 s each for the answer)
    assert [2, 11, 24] == harness.asked_at
    await asyncio.sleep(16)  # 29 + 16 = 45: the fourth is in flight
    harness.poller.reset()
    await asyncio.sleep(20)

    assert [45, 52, 61] == harness.asked_at[3:]


async def test_rule_2_an_answer_with_something_drained_starts_again_at_the_shortest_pause(
    harness: PollerHarness,
) -> None:
    harness.poller.reset()
    await asyncio.sleep(20)  # asked at 2, 6, 14
    harness.answer = lambda segments: asyncio.sleep(0, frozenset({1}))
    await asyncio.sleep(10.5)
    harness.answer = harness.nothing
    await asyncio.sleep(7)

    assert [2, 6, 14, 30, 32, 36] == harness.asked_at
    assert [{1}] == harness.drained


async def test_rule_3_ask_now_does_not_wait(harness: PollerHarness) -> None:
    harness.poller.poll_now()
    await asyncio.sleep(1)

    assert [0] == harness.asked_at


async def test_rule_3_ask_now_wakes_a_sleeping_poller_and_begins_again_at_the_shortest_pause(
    harness: PollerHarness,
) -> None:
    harness.poller.reset()
    await asyncio.sleep(40)
    harness.poller.poll_now()
    await asyncio.sleep(7)

    assert [40, 42, 46] == harness.asked_at[-3:]


async def test_rule_3_ask_now_while_a_check_is_in_flight_makes_another_right_after_it(harness: PollerHarness) -> None:
    harness.answer = lambda segments: asyncio.sleep(5, NOTHING)
    harness.poller.poll_now()
    await asyncio.sleep(1)
    harness.poller.poll_now()
    harness.poller.poll_now()
    await asyncio.sleep(10)

    assert [0, 5] == harness.asked_at


async def test_rule_4_one_check_at_a_time(harness: PollerHarness) -> None:
    running = 0

    async def answer(segments: frozenset[int]) -> frozenset[int]:
        nonlocal running
        running += 1
        assert 1 == running
        await asyncio.sleep(3)
        running -= 1
        return NOTHING

    harness.answer = answer
    for _ in range(20):
        harness.poller.poll_now()
        await asyncio.sleep(0.7)

    assert ["waiting"] * 4 == harness.outcomes


async def test_rule_4_a_check_that_raises_before_it_waits_means_not_drained_yet(harness: PollerHarness) -> None:
    def answer(segments: frozenset[int]) -> Awaitable[frozenset[int]]:
        raise ConnectionRefusedError("nobody listens")

    harness.answer = answer
    harness.poller.reset()
    await asyncio.sleep(7)

    assert [2, 6] == harness.asked_at
    assert ["failed", "failed"] == harness.outcomes


@pytest.mark.parametrize("error", [ValueError("a bug in the checker"), asyncio.CancelledError()])
async def test_rule_4_a_check_that_raises_later_means_not_drained_yet(
    harness: PollerHarness, error: BaseException
) -> None:
    async def answer(segments: frozenset[int]) -> frozenset[int]:
        await asyncio.sleep(1)
        raise error

    harness.answer = answer
    harness.poller.reset()
    await asyncio.sleep(9)

    assert ["failed", "failed"] == harness.outcomes
    assert [] == harness.drained


async def test_rule_4_a_check_that_hangs_is_given_up_and_asked_again(harness: PollerHarness) -> None:
    harness.answer = lambda segments: asyncio.sleep(10**6, frozenset({1}))
    harness.poller.reset()
    await asyncio.sleep(13)
    harness.answer = harness.nothing
    await asyncio.sleep(4)

    assert ["timed_out", "waiting"] == harness.outcomes
    assert [2, 16] == harness.asked_at
    assert [] == harness.drained


async def test_rule_4_a_check_that_ignores_its_cancellation_is_not_joined_by_another(
    harness: PollerHarness, uncancellable
) -> None:
    """And what it says in the end does not count: it looked too long ago."""
    harness.answer = uncancellable
    harness.poller.reset()
    await asyncio.sleep(20)
    assert ["timed_out", "stuck"] == harness.outcomes
    assert [2] == harness.asked_at

    uncancellable.finish()
    await asyncio.sleep(0)
    assert [] == harness.drained
    harness.answer = harness.nothing
    await asyncio.sleep(10)
    assert ["timed_out", "stuck", "waiting"] == harness.outcomes


async def test_rule_4_an_answer_about_what_was_not_asked_is_left_out(harness: PollerHarness) -> None:
    harness.answer = lambda segments: asyncio.sleep(0, frozenset({2, 3}))
    harness.poller.poll_now()
    await asyncio.sleep(1)

    assert [{2}] == harness.drained


async def test_rule_5_with_nothing_to_ask_about_it_stops_and_reset_starts_it_again(harness: PollerHarness) -> None:
    harness.answer = lambda segments: asyncio.sleep(0, segments)
    harness.poller.reset()
    await asyncio.sleep(1000)
    assert [2] == harness.asked_at
    assert not harness.poller.running

    harness.pending = frozenset({3})
    harness.poller.reset()
    await asyncio.sleep(3)
    assert [2, 1002] == harness.asked_at


async def test_rule_5_a_sleeping_poller_stops_when_told_that_nothing_is_left(harness: PollerHarness) -> None:
    harness.poller.reset()
    await asyncio.sleep(0.5)
    harness.pending = NOTHING
    harness.poller.reset()
    await asyncio.sleep(0.1)

    assert not harness.poller.running
    await asyncio.sleep(100)
    assert [] == harness.asked_at


@pytest.mark.parametrize("begin", ["reset", "poll_now"])
async def test_rule_5_it_does_not_start_with_nothing_to_ask_about(harness: PollerHarness, begin: str) -> None:
    harness.pending = NOTHING
    getattr(harness.poller, begin)()
    assert not harness.poller.running

    harness.pending = frozenset({1})
    harness.poller.reset()
    await asyncio.sleep(3)
    assert [2] == harness.asked_at


async def test_rule_5_a_question_that_became_pointless_is_not_kept_for_later(harness: PollerHarness) -> None:
    harness.poller.poll_now()
    harness.pending = NOTHING
    await asyncio.sleep(0.1)
    assert not harness.poller.running

    harness.pending = frozenset({1})
    harness.poller.reset()
    await asyncio.sleep(3)
    assert [2.1] == harness.asked_at


async def test_rule_5_what_it_asks_is_what_is_pending_when_it_asks(harness: PollerHarness) -> None:
    harness.answer = lambda segments: asyncio.sleep(0, segments)
    harness.poller.reset()
    await asyncio.sleep(1)
    harness.pending = frozenset({9})
    await asyncio.sleep(2)

    assert [{9}] == harness.drained


async def test_rule_6_close_ends_a_sleep_and_nothing_starts_again(harness: PollerHarness) -> None:
    harness.poller.reset()
    await asyncio.sleep(1)
    await harness.poller.close()
    harness.poller.reset()
    harness.poller.poll_now()
    await asyncio.sleep(100)

    assert [] == harness.asked_at
    assert not harness.poller.running


async def test_rule_6_close_cancels_a_check_in_flight_and_waits_for_it(harness: PollerHarness, looptime) -> None:
    ended_at = []

    async def answer(segments: frozenset[int]) -> frozenset[int]:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0.5)
            ended_at.append(asyncio.get_running_loop().time())
        return segments

    harness.answer = answer
    harness.poller.reset()
    await asyncio.sleep(3)
    await harness.poller.close()

    assert [3.5] == ended_at
    assert [] == harness.drained
    assert [] == harness.outcomes


async def test_rule_6_an_answer_after_close_reports_nothing_and_re_arms_nothing(harness: PollerHarness) -> None:
    """A check may answer although it is being cancelled."""

    async def answer(segments: frozenset[int]) -> frozenset[int]:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return segments
        return NOTHING

    harness.answer = answer
    harness.poller.reset()
    await asyncio.sleep(3)
    await harness.poller.close()
    await asyncio.sleep(100)

    assert [] == harness.drained
    assert [] == harness.outcomes
    assert [2] == harness.asked_at


async def test_rule_6_closing_in_the_moment_of_an_answer_reports_nothing(harness: PollerHarness) -> None:
    """The check is done, but the poller has not been resumed yet when close is called."""
    closing: list[asyncio.Task[None]] = []

    async def answer(segments: frozenset[int]) -> frozenset[int]:
        closing.append(asyncio.ensure_future(harness.poller.close()))
        return segments

    harness.answer = answer
    harness.poller.poll_now()
    await asyncio.sleep(100)
    await asyncio.gather(*closing)

    assert [] == harness.drained
    assert [] == harness.outcomes
    assert [0] == harness.asked_at


async def test_rule_6_close_does_not_wait_for_ever_for_a_check_that_will_not_end(
    harness: PollerHarness, uncancellable, looptime
) -> None:
    harness.answer = uncancellable
    harness.poller.poll_now()
    await asyncio.sleep(3)
    await harness.poller.close()

    assert looptime == 4
    uncancellable.finish()
    await asyncio.sleep(1)
    assert [] == harness.drained


async def test_close_twice_and_close_before_anything_began_are_harmless(harness: PollerHarness) -> None:
    await harness.poller.close()
    await harness.poller.close()

    assert not harness.poller.running


async def test_a_bug_in_what_follows_from_an_answer_reaches_the_owner(harness: PollerHarness) -> None:
    """It is not taken for a failed check, and not polled over."""

    def on_drained(segments: frozenset[int]) -> None:
        raise AssertionError("a bug")

    harness.poller._on_drained = on_drained
    harness.answer = lambda segments: asyncio.sleep(0, segments)
    harness.poller.raise_failure()
    harness.poller.poll_now()
    await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="a bug"):
        harness.poller.raise_failure()
    with pytest.raises(AssertionError, match="a bug"):
        harness.poller.reset()
    assert not harness.poller.running
