"""Situations that simulated worlds must reach: what daemons report, by its outcome or reason.

A judge finds nothing in what never happens. The list comes from the events that exist, so a new reason is on it at once.

\b
Examples:
  python -m tests.simulation.situations                play seeds, and print how many worlds reached each situation
  python -m tests.simulation.situations --seeds 100

Exit code 0: each was reached; 1: one was not; 2: a wrong option.
"""

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal, get_args, get_origin, get_type_hints

import click

from metrics import events
from tests.simulation.plan import FIRST_SMALL_SEED, plan_of

LABELS: Final = {
    events.BatchJudged: "verdict",
    events.ConsumerRemoved: "reason",
    events.DeliveriesJudged: "outcome",
    events.DrainPollCompleted: "outcome",
    events.HandoverFinished: "reason",
    events.LayoutChanged: "reason",
    events.QuotaExceeded: "quota",
    events.SegmentStalled: "outcome",
    events.SplitSuppressed: "limit",
    events.StoreOperationFailed: "operation",
    events.TransferEnded: "reason",
}


def situation_of(event: events.Event) -> str | None:
    label = LABELS.get(type(event))
    return None if label is None else f"{type(event).__name__}: {getattr(event, label)}"


def situations() -> Iterator[str]:
    """Yield every situation that the labels of the events allow."""
    for kind, label in LABELS.items():
        hint = get_type_hints(kind)[label]
        values = get_args(hint) if get_origin(hint) is Literal else [each.value for each in hint]
        yield from (f"{kind.__name__}: {value}" for value in values)


def _reached(seed: int) -> set[str]:
    from tests.simulation.play import play  # noqa: PLC0415 - the worlds report to this module

    return set(play(plan_of(seed)).situations)


@click.command(name="situations", help=__doc__)
@click.option("--seeds", default=900, show_default=True, type=click.IntRange(min=1), help="Worlds to play.")
def main(seeds: int) -> None:
    """Play worlds, and print how many of them reached each situation."""
    worlds = Counter[str]()
    with multiprocessing.Pool(os.cpu_count(), maxtasksperchild=20) as pool:
        for found in pool.imap_unordered(_reached, range(FIRST_SMALL_SEED, FIRST_SMALL_SEED + seeds)):
            worlds.update(found)
    for each in situations():
        click.echo(f"{worlds[each]:6}  {each}")
    if missing := [each for each in situations() if not worlds[each]]:
        click.echo(f"not reached: {', '.join(missing)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
