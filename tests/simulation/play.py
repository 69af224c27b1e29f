"""Plays one seed's world to its end, in virtual time."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import structlog

from tests.simulation.invariant_checker import Witness
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import World
from tests.support.object_store import FakeStore


def run_seed(seed: int, *, storms: int = 10, store_kind: type[FakeStore] = FakeStore) -> Witness:
    """Run one world to its end in virtual time and return what was seen.

    Raises BrokenPromiseError or whatever a bug raised, with the run's story as a note.
    """
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    loop = VirtualLoop()
    world = World(seed, store_kind=store_kind)
    try:
        with (
            patch("controller.retention.trimmer.LOOK_SECONDS", 3.0),
            # A run lasts about two minutes: weights have to change within it.
            patch("coordinator.load_watch.SAMPLE_SECONDS", 1.0),
            patch("coordinator.balancing.weights.HOLD_SECONDS", 5.0),
        ):
            loop.run_until_complete(world.run(storms=storms))
    except BaseException as error:
        error.add_note(f"seed {seed}; the last of the story:\n" + "\n".join(world.witness.story[-60:]))
        raise
    finally:
        _end_all(loop)
        loop.close()
    return world.witness


def _end_all(loop: VirtualLoop) -> None:
    """End whatever a failed run left running."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=600))
