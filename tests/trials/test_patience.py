"""A slow machine is waited for: only a run in which nothing changes any more has stalled."""

from trials.judge import STALLED_SECONDS, Patience


def test_a_run_has_stalled_after_a_time_without_a_change() -> None:
    patience = Patience(0)

    assert not any(patience.ended(second, second // 100) for second in range(0, 36_000, 50))
    assert not patience.ended(36_000, 360)
    assert not patience.ended(36_000 + STALLED_SECONDS - 1, 360)
    assert patience.ended(36_000 + STALLED_SECONDS, 360)
    assert not patience.ended(36_000 + STALLED_SECONDS, 361), "it continues after all"
