"""Plant each bug of the catalogue, and find out what notices it: unit tests, and seeds of the simulator.

\b
Examples:
  python -m tests.planted_bugs --table            those that changed, and the page
  python -m tests.planted_bugs --only gate.py     show what finds the bugs of a file
  python -m tests.planted_bugs --all --seeds 100 --json
  python -m tests.planted_bugs --open --table     play seeds for those that no seed has found

Exit code 0: each is found, or has a reason; 1: one is not; 2: a wrong option.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from tests.planted_bugs.catalogue import ROOT, PlantedBug, load
from tests.planted_bugs.table import Outcome, missing, not_found_yet, page
from tests.planted_bugs.trial import seeds_of, simulate, unit_tests

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "planted-bugs.md"


@click.command(name="planted_bugs", help=__doc__)
@click.option("--only", default="", help="Plant bugs whose file or name contains this text.")
@click.option("--all", "every", is_flag=True, help="Plant again those that have not changed.")
@click.option("--open", "unfound", is_flag=True, help="Only play seeds, for those not found so far.")
@click.option("--seeds", default=40, show_default=True, type=click.IntRange(min=1), help="Seeds to play per bug.")
@click.option("--unseen", is_flag=True, help="Play seeds also for those that are said not to be found.")
@click.option("--table", "writes", is_flag=True, help="Keep the results, and write docs/planted-bugs.md.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(only: str, *, every: bool, unseen: bool, unfound: bool, seeds: int, writes: bool, as_json: bool) -> None:
    """Do what the options say."""
    bugs = load()
    outcomes = stored_results()
    chosen = [bug for bug in bugs if only in bug.key and (every or only or unfound or not _is_known(bug, outcomes))]
    if unfound:
        chosen = [bug for bug in chosen if not_found_yet([bug], outcomes)]
    known = {bug.key: outcomes[bug.key].unit_test for bug in chosen} if unfound else {}
    outcomes |= plant(chosen, seeds, known, try_unseen=unseen)
    if writes:
        keep = {bug.key: outcomes[bug.key] for bug in bugs if bug.key in outcomes}
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(keep), indent=1) + b"\n")
        if len(keep) == len(bugs):
            PAGE.write_text(page(bugs, keep))
    shown = chosen or bugs
    if as_json:
        click.echo(msgspec.json.encode({bug.key: outcomes[bug.key] for bug in shown}))
    judged = shown if only else bugs
    problems = missing(judged, outcomes) + not_found_yet(judged, outcomes)
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        raise click.exceptions.Exit(1)


def stored_results(path: Path = RESULTS) -> dict[str, Outcome]:
    """Return the results that were kept."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Outcome]) if path.exists() else {}


def plant(bugs: Sequence[PlantedBug], seeds: int, known: Mapping[str, str], *, try_unseen: bool) -> dict[str, Outcome]:
    """Plant bugs and return what found them; progress goes to standard error.

    ``known``: bug → the unit test that finds it; the tests of these bugs are not run again.
    """
    tests = dict(known)

    def tested(bug: PlantedBug, test: str) -> None:
        tests[bug.key] = test
        click.echo(f"{len(tests)}/{len(bugs)} {bug.key}: {test or 'no unit test'}", err=True)

    unit_tests([bug for bug in bugs if bug.key not in known], tested)
    outcomes = {}
    for count, bug in enumerate(bugs, start=1):
        played = 0 if bug.unseen and not try_unseen else seeds
        seen = simulate(bug, seeds_of(bug, played))
        click.echo(f"{count}/{len(bugs)} {bug.key}: {'no seed' if seen is None else seen}", err=True)
        outcomes[bug.key] = Outcome(
            digest=bug.digest,
            unit_test=tests[bug.key],
            seeds=None if seen is None else seen.seeds,
            seeds_played=played,
            how="" if seen is None else seen.how,
        )
    return outcomes


def _is_known(bug: PlantedBug, outcomes: Mapping[str, Outcome]) -> bool:
    return bug.key in outcomes and outcomes[bug.key].digest == bug.digest


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m tests.planted_bugs"))
