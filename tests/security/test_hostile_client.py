"""Some seconds of the hostile client of the benchmark: the whole hour is ``python -m bench hostile_client``."""

from __future__ import annotations

import pytest

from bench._harness import Effort
from bench.hostile_client import BENCHMARK, measure
from tests.support.programs import TEST_SECONDS

pytestmark = [pytest.mark.security, pytest.mark.timeout(TEST_SECONDS)]

SECONDS = 12
MAX_RATIO = 50.0
"""A short attack is dense, and CI is busy: only honest users that are shut out exceed this."""


def test_a_hostile_client_costs_honest_users_nothing_but_time() -> None:
    measured = measure(Effort(quick=True, progress=print, seconds=SECONDS))

    assert [] == BENCHMARK.missed_parts(measured), measured.parts
    assert measured.value <= MAX_RATIO, measured.parts
    assert measured.parts["kinds"] > 100
