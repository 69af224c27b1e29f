"""Plays the simulation of one seed to its end, in virtual time."""

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

import structlog

from tests.simulation.clients import SWITCH_PROBABILITY
from tests.simulation.drifting_clocks import DriftingLoop
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import Chunks, Plan, Scale, plan_of
from tests.simulation.shared_decoding import decoding_once
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import ClusterSimulation

_DECODING: Final[dict[Chunks, Callable[[], AbstractContextManager[None]]]] = {
    "parquet": nullcontext,
    "shared": decoding_once,
    "memory": partial(decoding_once, in_memory=True),
}


def run_seed(seed: int, scale: Scale | None = None, **kinds: bool | float) -> InvariantChecker:
    """Play the plan of ``seed``, with the ``scale`` that it draws or another one; see `play`."""
    return play(plan_of(seed, scale), **kinds)  # type: ignore[arg-type]


def play(
    plan: Plan,
    checker: InvariantChecker | None = None,
    *,
    changed_batches: bool = False,
    named_producer: bool = False,
    forged_announcements: bool = False,
    device_switches: float = SWITCH_PROBABILITY,
    quotas: bool = False,
    chunks: Chunks | None = None,
) -> InvariantChecker:
    """Run one simulation and return its checker.

    ``checker``: where to find what happened, if it fails. ``changed_batches``: with a client that changes batches of
    others. ``named_producer``: with a program that
    continues at its source position, beside many anonymous producers. ``forged_announcements``: with a program that
    replaces the leader's announcements. ``device_switches``: probability that the intake of devices is switched on or
    off before a publication of a device. ``quotas``: with quotas that the clients exceed.
    ``chunks``: how chunks are encoded and decoded, by default as the plan says.

    Raises InvariantViolationError, or what a bug raised, with the end of the run's story as a note.
    """
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    drifts = any(step.operation == "clock_drift" for step in plan.steps)
    loop = DriftingLoop() if drifts else VirtualLoop()
    simulation = ClusterSimulation(
        plan,
        checker or InvariantChecker(),
        changed_batches=changed_batches,
        named_producer=named_producer,
        forged_announcements=forged_announcements,
        device_switches=device_switches,
        quotas=quotas,
    )
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
