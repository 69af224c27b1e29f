"""Ages count what leaders lived through; no step of a clock makes anything older than that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.state.ledger_time import IDLE_CHUNK_MS, LedgerTime, SteadyClock, tick_pause_seconds

MAX_STEP_MS = 3_600_000
MAX_SKIPS = 64
DAY = 24 * MAX_STEP_MS
START = 1_700_000_000_000


def time_after(*chunks_at_ms: int) -> LedgerTime:
    time = LedgerTime()
    for at_ms in (START, *chunks_at_ms):
        time.advance(at_ms)
    return time


def test_only_what_exceeds_an_hour_is_remembered_as_a_step() -> None:
    assert [] == time_after().skips, "the first chunk is none"
    assert [] == time_after(START + MAX_STEP_MS).skips
    assert [(START + MAX_STEP_MS + 1, 1)] == time_after(START + MAX_STEP_MS + 1).skips


def test_idle_time_counts_if_the_leader_commits_while_idle() -> None:
    chunks = range(START, START + 8 * DAY + 1, IDLE_CHUNK_MS)

    assert IDLE_CHUNK_MS == 3_000_000
    assert 8 * DAY == time_after(*chunks).age_ms(START, START + 8 * DAY)


def test_the_steps_of_64_outages_are_remembered_separately() -> None:
    time = time_after(*(START + n * DAY for n in range(1, 65)))
    assert 64 * MAX_STEP_MS == time.age_ms(START, time.at_ms)
    assert 63 * MAX_STEP_MS == time.age_ms(START + DAY, time.at_ms)

    time.advance(START + 65 * DAY)
    assert time.age_ms(START + DAY, time.at_ms) < 64 * MAX_STEP_MS, "the two oldest are joined"


def test_ledger_time_waits_for_a_clock_that_was_ahead() -> None:
    """It never falls. What expires waits, too."""
    time = time_after(START + DAY, START + 60_000)

    assert START + DAY == time.at_ms
    assert time.age_ms(START, START + 60_000) == time.age_ms(START, START + DAY) == MAX_STEP_MS


@given(st.lists(st.integers(0, 3 * MAX_STEP_MS), min_size=1, max_size=3 * MAX_SKIPS), st.integers(-DAY, 30 * DAY))
def test_ages_are_bounded_and_fall_towards_later_times(steps: list[int], ahead_ms: int) -> None:
    """They never exceed the ledger time since then, nor an hour per chunk, however many steps there were."""
    at_ms = [START]
    for step in steps:
        at_ms.append(at_ms[-1] + step)
    time = time_after(*at_ms[1:])
    now_ms = time.at_ms + ahead_ms
    ages = [time.age_ms(since_ms, now_ms) for since_ms in at_ms]

    assert len(time.skips) <= MAX_SKIPS
    for position, (since_ms, age_ms) in enumerate(zip(at_ms, ages, strict=True)):
        chunks_since = len(at_ms) - position
        assert age_ms <= min(max(time.at_ms, now_ms) - since_ms, chunks_since * MAX_STEP_MS)
    assert ages[-1] >= 0


@given(st.lists(st.integers(0, 3 * MAX_STEP_MS), min_size=1, max_size=20))
def test_ages_add_up(steps: list[int]) -> None:
    """With few steps nothing is joined: an age is the sum of its steps, an hour each at most."""
    time, at_ms = time_after(), [START]
    for step in steps:
        at_ms.append(at_ms[-1] + step)
        time.advance(at_ms[-1])

    assert sum(min(step, MAX_STEP_MS) for step in steps) == time.age_ms(START, at_ms[-1])


WEEK = 7 * 24 * 3_600_000
TOLERATED_STEP_MS = 10_000
TEN_MINUTES_MS = 600_000


class Machine:
    """A machine with a wall clock that can be set."""

    def __init__(self) -> None:
        self.elapsed_ms = 5_000
        self.set_by_ms = 0
        self.clock = SteadyClock(self.true_ms, self.elapsed_ms)

    @property
    def true_ms(self) -> int:
        return START + self.elapsed_ms

    def error_after(self, wait_ms: int) -> int:
        """Return how far the steady clock is from the true time, ``wait_ms`` later."""
        self.elapsed_ms += wait_ms
        return self.clock.read(self.true_ms + self.set_by_ms, self.elapsed_ms) - self.true_ms


@pytest.mark.parametrize("step_ms", [WEEK, -WEEK, TOLERATED_STEP_MS + 1, -TOLERATED_STEP_MS - 1])
def test_a_step_that_is_taken_back_has_no_effect(step_ms: int) -> None:
    machine = Machine()
    machine.set_by_ms = step_ms
    errors = [machine.error_after(250) for _ in range(8)]
    held_ms = machine.clock.step_ms
    machine.set_by_ms = 0

    assert errors == [0] * 8
    assert held_ms == step_ms
    assert machine.error_after(250) == 0
    assert machine.clock.step_ms == 0


@pytest.mark.parametrize(("by_ms", "same"), [(0, True), (TOLERATED_STEP_MS, True), (TOLERATED_STEP_MS + 1, False)])
def test_a_step_that_lasts_is_followed_if_the_clock_stays_within_ten_seconds_of_it(by_ms: int, same: bool) -> None:
    """A clock that was wrong from the start is set right, or the machine was paused."""
    machine = Machine()
    machine.set_by_ms = WEEK
    assert machine.error_after(250) == 0
    machine.set_by_ms += by_ms

    assert machine.error_after(TEN_MINUTES_MS - 1) == 0
    assert machine.error_after(1) == (WEEK + by_ms if same else 0)
    assert (machine.clock.step_ms == 0) == same


def test_a_clock_that_is_set_again_and_again_is_not_followed() -> None:
    machine = Machine()
    for step in range(1, 100):
        machine.set_by_ms = step * WEEK
        assert machine.error_after(TEN_MINUTES_MS // 2) == 0


def test_a_slewed_clock_is_followed() -> None:
    machine = Machine()
    for slewed_ms in range(0, 60_000, 500):
        machine.set_by_ms = slewed_ms
        assert machine.error_after(1_000_000) == slewed_ms


def test_time_that_elapsed_between_two_readings_is_no_step() -> None:
    """A laptop was suspended, and its boot clock continued."""
    assert Machine().error_after(WEEK) == 0


@pytest.mark.parametrize("step_ms", [1, -1, TOLERATED_STEP_MS, -TOLERATED_STEP_MS])
def test_a_small_difference_is_followed_at_once(step_ms: int) -> None:
    """From the first second on, and it is no step that is held back."""
    machine = Machine()
    machine.set_by_ms = step_ms

    assert machine.error_after(1) == step_ms
    assert machine.clock.step_ms == 0


@pytest.mark.parametrize(
    ("shortest_seconds", "idle", "pause_seconds"),
    [
        pytest.param(15.0, False, 0.25, id="a leader that writes checks four times a second"),
        pytest.param(5.0, True, 0.5, id="an idle one exceeds its shortest deadline by a tenth at most"),
        pytest.param(15.0, True, 1.0, id="once a second, if no deadline needs more"),
        pytest.param(0.1, True, 0.25, id="never more often than one that writes"),
    ],
)
def test_a_leader_checks_its_deadlines(shortest_seconds: float, idle: bool, pause_seconds: float) -> None:
    assert pause_seconds == tick_pause_seconds(60.0, shortest_seconds, idle=idle)
