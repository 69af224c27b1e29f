"""Ages count what leaders lived through; no step of a clock makes anything older than that."""

from hypothesis import given
from hypothesis import strategies as st

from shard.state.ledger_time import IDLE_CHUNK_MS, LedgerTime

MAX_STEP_MS = 3_600_000
MAX_SKIPS = 64
DAY = 24 * MAX_STEP_MS
START = 1_700_000_000_000


def time_after(*chunks_at_ms: int) -> LedgerTime:
    time = LedgerTime()
    for at_ms in (START, *chunks_at_ms):
        time.advance(at_ms)
    return time


def test_an_age_is_the_time_since_then() -> None:
    time = time_after(START + 1000)

    assert (5000, 4000) == (time.age_ms(START, START + 5000), time.age_ms(START + 1000, START + 5000))


def test_a_step_between_two_chunks_counts_at_most_an_hour() -> None:
    time = time_after(START + 8 * DAY, START + 8 * DAY + 1000)

    assert MAX_STEP_MS + 1000 == time.age_ms(START, time.at_ms)
    assert 1000 == time.age_ms(START + 8 * DAY, time.at_ms), "what happened after the step has its whole age"


def test_a_step_since_the_newest_chunk_counts_at_most_an_hour() -> None:
    """The clock of a leader jumps while it is idle."""
    assert MAX_STEP_MS == time_after().age_ms(START, START + 8 * DAY)


def test_only_what_exceeds_an_hour_is_remembered_as_a_step() -> None:
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


def test_the_first_chunk_is_no_step() -> None:
    assert [] == time_after().skips


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
