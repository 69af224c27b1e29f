"""Plays one seed's simulation to its end, in virtual time."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import structlog

from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import ClusterSimulation
from tests.support.object_store import FakeStore


def run_seed(seed: int, *, fault_rounds: int = 10, store_kind: type[FakeStore] = FakeStore) -> InvariantChecker:
    """Run one simulation to its end in virtual time and return what was seen.

    Raises InvariantViolationError or whatever a bug raised, with the run's story as a note.
    """
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    loop = VirtualLoop()
    simulation = ClusterSimulation(seed, store_kind=store_kind)
    try:
        with patch("controller.retention.trimmer.TRIM_INTERVAL_SECONDS", 3.0):
            loop.run_until_complete(simulation.run(fault_rounds=fault_rounds))
    except BaseException as error:
        error.add_note(f"seed {seed}; the last of the story:\n" + "\n".join(simulation.checker.trace[-60:]))
        raise
    finally:
        _end_all(loop)
        loop.close()
    return simulation.checker


def _end_all(loop: VirtualLoop) -> None:
    """End whatever a failed run left running."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=600))
