"""The warm-up of a fresh JVM."""

import pytest

from drain.service import warmup

pytestmark = pytest.mark.spark


def test_the_warm_up_runs_in_two_tasks(spark):
    reported: list[str] = []
    warmup.warm_up(spark, reported.append)

    assert reported == ["the warm-up run has completed"]
