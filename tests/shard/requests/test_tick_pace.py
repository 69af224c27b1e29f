"""How long a leader waits before it checks its deadlines again."""

from shard.requests.tick_pace import tick_pause_seconds


def test_a_leader_that_writes_checks_four_times_a_second() -> None:
    assert 0.25 == tick_pause_seconds(60.0, 15.0, idle=False)


def test_an_idle_leader_exceeds_its_shortest_deadline_by_a_tenth_at_most() -> None:
    assert 0.5 == tick_pause_seconds(60.0, 5.0, idle=True)


def test_an_idle_leader_checks_once_a_second_if_no_deadline_needs_more() -> None:
    assert 1.0 == tick_pause_seconds(60.0, 15.0, idle=True)


def test_an_idle_leader_never_checks_more_often_than_one_that_writes() -> None:
    assert 0.25 == tick_pause_seconds(60.0, 0.1, idle=True)
