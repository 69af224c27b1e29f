"""Plays the simulation of one seed to its end, in virtual time."""

from __future__ import annotations

import asyncio

import structlog

from tests.simulation.clients import SWITCH_PROBABILITY
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import ClusterSimulation
from tests.support.fakes.object_store import FakeStore


def run_seed(
    seed: int,
    *,
    fault_rounds: int = 10,
    store_kind: type[FakeStore] = FakeStore,
    changed_batches: bool = False,
    named_producer: bool = False,
    forged_announcements: bool = False,
    device_switches: float = SWITCH_PROBABILITY,
    quotas: bool = False,
) -> InvariantChecker:
    """Run one simulation and return its checker.

    ``changed_batches``: with a client that changes batches of others. ``named_producer``: with a program that
    continues at its source position, beside many anonymous producers. ``forged_announcements``: with a program that
    replaces the leader's announcements. ``device_switches``: probability that the intake of devices is switched on or
    off before a publication of a device. ``quotas``: with quotas that the clients exceed.

    Raises InvariantViolationError, or what a bug raised, with the end of the run's trace as a note.
    """
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    loop = VirtualLoop()
    simulation = ClusterSimulation(
        seed,
        store_kind=store_kind,
        changed_batches=changed_batches,
        named_producer=named_producer,
        forged_announcements=forged_announcements,
        device_switches=device_switches,
        quotas=quotas,
    )
    try:
        loop.run_until_complete(simulation.run(fault_rounds=fault_rounds))
    except BaseException as error:
        error.add_note(f"seed {seed}; end of the trace:\n" + "\n".join(simulation.checker.trace[-60:]))
        raise
    finally:
        _cancel_all(loop)
        loop.close()
    return simulation.checker


def _cancel_all(loop: VirtualLoop) -> None:
    """Cancel the tasks of a failed run."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=600))
