"""Plants each bug of `tests.simulation.planted_bugs`, and plays seeds until one finds it.

\b
Examples:
  python -m tests.simulation.nightly                       the table of all
  python -m tests.simulation.nightly --only gate --seeds 50

Exit code 0: each bug was found; 1: one was not; 2: a wrong option.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from itertools import count, islice
from types import FrameType

import click

from tests.simulation.failure import failure_of
from tests.simulation.plan import plan_of
from tests.simulation.planted_bugs import BUGS, Bug, planted

SEED_SECONDS = 300
"""Processor time after which a seed counts as one that never ends."""
WIDTH = 100
"""Characters of the failure that are shown."""


def first_failure(bug: Bug, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Play ``seeds`` with the bug; return the first that fails, and how. None: none does."""
    signal.signal(signal.SIGVTALRM, _out_of_time)
    with planted(bug):
        for seed in seeds:
            signal.setitimer(signal.ITIMER_VIRTUAL, SEED_SECONDS)
            failure = failure_of(plan_of(seed))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if failure is not None:
                assert not failure.kind.startswith("TypeError"), (
                    f"{bug.sentence} It has wrong arguments: {failure.kind}"
                )
                return seed, failure.kind
    return None


def _out_of_time(_: int, __: FrameType | None) -> None:
    raise RuntimeError(f"a seed did not end within {SEED_SECONDS} s of processor time")


def _find(job: tuple[int, int]) -> tuple[int, tuple[int, str] | None]:
    number, seeds = job
    bug = BUGS[number]
    suitable = (seed for seed in count(1) if not bug.kind or bug.kind in plan_of(seed).kinds)
    return number, first_failure(bug, islice(suitable, seeds))


@click.command(name="nightly", help=__doc__)
@click.option("--only", default="", help="Plant bugs whose sentence or function contains this text.")
@click.option("--seeds", default=200, show_default=True, type=click.IntRange(min=1), help="Seeds to play for each bug.")
def main(only: str, seeds: int) -> None:
    """Plant the bugs, each in a process of its own, and print how each was found."""
    jobs = [(number, seeds) for number, bug in enumerate(BUGS) if only in f"{bug.sentence} {bug.seam}"]
    missed = 0
    # Forked, and not again for another bug: what a bug has left in a cache must not reach the next one.
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for number, found in pool.imap_unordered(_find, jobs):
            missed += found is None
            how = f"not found within {seeds} seeds" if found is None else f"seed {found[0]:>3}: {found[1][:WIDTH]}"
            click.echo(f"{BUGS[number].sentence:<66} {how}")
    click.echo(f"{len(jobs) - missed} of {len(jobs)} found")
    if missed:
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m tests.simulation.nightly"))
