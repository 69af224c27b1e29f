"""Play the simulation of seeds, and reduce one that fails to the fewest faults and programs.

\b
Examples:
  python -m tests.simulation --seeds 1 200           play these; stop at a failure
  python -m tests.simulation --seed 17               play one, and print its story
  python -m tests.simulation --seed 17 --shrink      the fewest parts that still fail
  python -m tests.simulation --seed 17 --parts 3:split,stream-0 --salt 2
  python -m tests.simulation --minutes 60            new seeds for an hour

Exit code 0: all invariants held; 1: a seed failed; 2: a wrong option.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable

import click

from tests.simulation.failure import failure_of, shrunk
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import plan_of
from tests.simulation.play import play

MOST_RUNS = 300
"""Runs to shrink one seed: about a minute."""


@click.command(name="simulation", help=__doc__)
@click.option("--seeds", type=(int, int), metavar="FIRST LAST", help="Play these seeds (default: 1 50).")
@click.option("--seed", type=int, help="Play one seed, and print its story.")
@click.option("--parts", help="With --seed: only these faults and programs, separated by commas.")
@click.option("--salt", type=int, default=0, help="With --seed: other delays and pauses (default: 0).")
@click.option("--shrink", "shrinks", is_flag=True, help="With --seed: find the fewest parts that still fail.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Play new seeds for so long.")
def main(
    seeds: tuple[int, int] | None,
    seed: int | None,
    parts: str | None,
    salt: int,
    shrinks: bool,
    minutes: float | None,
) -> None:
    """Play what the options say."""
    if sum(given is not None for given in (seeds, seed, minutes)) > 1:
        raise click.UsageError("use only one of --seeds, --seed and --minutes")
    if seed is None and (shrinks or parts or salt):
        raise click.UsageError("--shrink, --parts and --salt need --seed")
    if seed is not None:
        _play_one(seed, parts, salt, shrinks=shrinks)
    elif minutes is not None:
        _play_long(minutes)
    else:
        first, last = seeds or (1, 50)
        _play_all(range(first, last + 1))


def _play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        began = time.perf_counter()
        failure = failure_of(plan_of(seed))
        if failure is not None:
            click.echo(f"seed {seed} failed\n{failure.report()}")
            click.echo(f"shrink: python -m tests.simulation --seed {seed} --shrink")
            raise click.exceptions.Exit(1)
        click.echo(f"seed {seed}: all invariants held ({time.perf_counter() - began:.1f} s)")


def _play_one(seed: int, parts: str | None, salt: int, *, shrinks: bool) -> None:
    plan = plan_of(seed)
    try:
        plan = plan.only(plan.parts if parts is None else [name for name in parts.split(",") if name], salt)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    failure = failure_of(plan)
    if failure is None:
        checker = play(plan)
        click.echo(f"{checker.story.table()}\n\nseed {seed}: all invariants held")
        return
    if shrinks:
        failure = shrunk(failure, MOST_RUNS, lambda line: click.echo(line, err=True))
    click.echo(failure.report())
    raise click.exceptions.Exit(1)


def _play_long(minutes: float) -> None:
    """Play new seeds; their numbers begin with the time, so that no two long runs play the same."""
    first = time.time_ns() // 1_000_000
    deadline = time.monotonic() + 60 * minutes
    verdicts: Counter[str] = Counter()
    virtual_seconds, played, failure = 0.0, 0, None
    while failure is None and time.monotonic() < deadline:
        checker = InvariantChecker()
        failure = failure_of(plan_of(first + played), checker)
        verdicts.update(checker.verdicts)
        virtual_seconds += checker.virtual_seconds
        played += 1
    click.echo(f"{played} seeds from {first} on, {virtual_seconds / 60:.0f} minutes of a cluster, {dict(verdicts)}")
    if failure is not None:
        click.echo(failure.report())
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m tests.simulation"))
