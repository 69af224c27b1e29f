"""A step of the wall clock is followed only once it has lasted."""

import pytest

from shard.state.steady_clock import SteadyClock

START = 1_700_000_000_000
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
