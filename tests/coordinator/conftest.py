"""Coordinators for tests, closed after each test."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.worlds.subscription_environment import CoordinatorHarness

Lead = Callable[..., CoordinatorHarness]
"""Starts a coordinator that is closed after the test."""


@pytest.fixture
async def lead() -> AsyncIterator[Lead]:
    started: list[CoordinatorHarness] = []

    def start(*consumers, segments=1, records=0, type="STREAM", order=None, with_drain_check=True, **registration):  # noqa: A002
        """Register ``consumers``, and store ``records`` in each of ``segments``."""
        harness = CoordinatorHarness(segments=segments, type=type, order=order, with_drain_check=with_drain_check)
        started.append(harness)
        harness.join(*consumers, **registration)
        for segment in range(segments if records else 0):
            harness.store(segment, records)
        return harness

    yield start
    for harness in started:
        await harness.coordinator.close()


@pytest.fixture
async def after_split(lead: Lead) -> CoordinatorHarness:
    """Consumer ada holds segment 0 with five records, which is then split into 1 and 2."""
    return lead("ada", records=5).split(0)


@pytest.fixture
async def harness(lead: Lead) -> CoordinatorHarness:
    """A STREAM with four segments and no consumer."""
    return lead(segments=4)
