"""Plants each bug in a process of its own, and finds out which unit test and which seed of the simulator notice it.

Nothing on disk is changed. The unit tests are those that execute the changed lines: first of the module's own test file, and
then of the folders of its package. The simulator plays seeds in order, until one fails in any way.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from tests.mutation.fork_server import Result, exchange_code, import_faulty, in_child, run
from tests.planted_bugs.catalogue import ROOT, PlantedBug
from tests.simulation.cluster_plan import is_clustered
from tests.simulation.plan import BUSY_EVERY

SEED_SECONDS = 60
"""Processor time after which a seed counts as one that never ends."""
CLUSTERED = ("controller/leader/", "controller/leadership/")
TRANSITIONS = "controller/leadership/transitions.py"


@dataclass(frozen=True, slots=True)
class Seen:
    """How the simulator noticed a bug."""

    seeds: int
    """Seeds up to the one that failed, those included whose world lacks what the bug needs."""
    how: str


def unit_tests(bugs: Sequence[PlantedBug], report: Callable[[PlantedBug, str], None]) -> None:
    """Report the unit test that fails for each bug, or ""."""
    left = list(bugs)
    for own_tests_only in (True, False):
        survivors: list[PlantedBug] = []

        def finished(result: Result[PlantedBug], survivors: list[PlantedBug] = survivors) -> None:
            if result.noticed:
                report(result.mutant, result.killer or "a test that does not end")
            else:
                survivors.append(result.mutant)

        if left:
            run(ROOT, left, finished, own_tests_only=own_tests_only)
        left = survivors
    for bug in left:
        report(bug, "")


def seeds_of(bug: PlantedBug, number: int) -> Iterator[int]:
    """Return the first seeds to play: for a bug of leadership those of worlds with several shards or daemons.

    The transitions of one shard need none of these.
    """
    of_leadership = bug.file.startswith(CLUSTERED) and bug.file != TRANSITIONS
    return itertools.islice(
        (seed for seed in itertools.count(1) if not of_leadership or (is_clustered(seed) and seed % BUSY_EVERY)), number
    )


def simulate(bug: PlantedBug, seeds: Iterable[int]) -> Seen | None:
    """Play seeds with the bug until one fails; None: none did."""
    importlib.import_module("tests.simulation.failure")  # once, for all that are forked
    path = ROOT / bug.file

    def work() -> tuple[int, str]:
        tree = bug.tree(path.read_text())
        if not exchange_code(bug, compile(tree, str(path), "exec")):
            import_faulty(bug.module, tree, path)
        return _first_failure(seeds, bug.needs)

    code, text = in_child(work, cpu_seconds=3600)
    if code == 0:
        return None
    if code != 1:
        raise RuntimeError(f"{bug.key}: the process that plays seeds ended with {code}")
    found = json.loads(text)
    return Seen(found["seeds"], found["how"])


def _first_failure(seeds: Iterable[int], needs: str) -> tuple[int, str]:
    """Play in this process, whose modules may have to be imported again. Worlds without what the bug ``needs`` only count."""
    try:
        from tests.simulation.failure import failure_of  # noqa: PLC0415 - imported with the bug
        from tests.simulation.plan import plan_of  # noqa: PLC0415
    except Exception as error:  # noqa: BLE001 - a program that cannot start is noticed
        return 1, json.dumps({"seeds": 0, "how": f"{type(error).__name__} at import"})
    signal.signal(signal.SIGVTALRM, _out_of_time)
    for count, seed in enumerate(seeds, start=1):
        plan = plan_of(seed)
        if needs and needs not in plan.kinds:
            continue
        signal.setitimer(signal.ITIMER_VIRTUAL, SEED_SECONDS)
        failure = failure_of(plan)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if failure is not None:
            return 1, json.dumps({"seeds": count, "how": failure.kind[:200]})
        gc.collect()
    return 0, ""


def _out_of_time(_: int, __: FrameType | None) -> None:
    raise RuntimeError(f"a seed did not end within {SEED_SECONDS} s of processor time")
