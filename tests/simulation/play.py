"""Plays the simulation of one seed to its end, in virtual time."""

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from tests.simulation.clients import SWITCH_PROBABILITY
from tests.simulation.drifting_clocks import DriftingLoop
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import Chunks, Plan, Scale, plan_of
from tests.simulation.shared_decoding import decoding_once
from tests.simulation.world import ClusterSimulation
from tests.support.virtual_loop import VirtualLoop

_DECODING: Final[dict[Chunks, Callable[[], AbstractContextManager[None]]]] = {
    "parquet": nullcontext,
    "shared": decoding_once,
    "memory": partial(decoding_once, in_memory=True),
}


def run_seed(seed: int, scale: Scale | None = None, *programs: str, **kinds: float) -> InvariantChecker:
    """Play the plan of ``seed``, with the ``scale`` that it draws or another one, and further ``programs``; see `play`."""
    plan = plan_of(seed, scale)
    return play(replace(plan, programs=tuple(dict.fromkeys((*plan.programs, *programs)))), **kinds)  # type: ignore[arg-type]


def play(
    plan: Plan,
    checker: InvariantChecker | None = None,
    *,
    device_switches: float = SWITCH_PROBABILITY,
    chunks: Chunks | None = None,
) -> InvariantChecker:
    """Run one simulation and return its checker.

    ``checker``: where to find what happened, if it fails. ``device_switches``: probability that the intake of devices is
    switched on or off before a publication of a device.
    ``chunks``: how chunks are encoded and decoded, by default as the plan says.

    Raises BrokenPromiseError, or what a bug raised, with the end of the run's story as a note.
    """
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    drifts = any(step.operation == "clock_drift" for step in plan.steps)
    loop = DriftingLoop() if drifts else VirtualLoop()
    simulation = ClusterSimulation(plan, checker or InvariantChecker(), device_switches=device_switches)
    logged = logging.root.manager.disable
    logging.disable()  # the story says what matters
    collected = gc.isenabled()
    gc.disable()  # the objects of one run are few, and looking for cycles among them takes a tenth of it
    try:
        with _DECODING[chunks or plan.chunks]():
            loop.run_until_complete(simulation.run())
    except BaseException as error:
        error.add_note(f"{simulation.checker.story.table()}\n\nseed {plan.seed}")
        raise
    finally:
        simulation.checker.virtual_seconds = loop.time()
        _cancel_all(loop)
        loop.close()
        logging.disable(logged)
        if collected:
            gc.enable()
    return simulation.checker


def _cancel_all(loop: VirtualLoop) -> None:
    """Cancel the tasks of a failed run."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=600))
