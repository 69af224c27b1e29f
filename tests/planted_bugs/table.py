"""The page about planted bugs: which rule, which bug, and what finds it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from tests.planted_bugs.catalogue import PlantedBug

HEAD = """\
# Planted bugs

<!-- Written by `python -m tests.planted_bugs --table`. Do not edit. -->

Would the tests have found it? Each row is a small change that breaks one rule: of the docstring of a module, and where
a source is named, as another system did. Unit tests of the module's package run against the changed program, and the
simulator plays seeds 1, 2, 3 … until one fails; for bugs of `controller/leader` and `controller/leadership` only those of
worlds with several shards or daemons, which are one of seven, except for the transitions of one shard. Worlds without what a bug needs, such as an external topic,
are counted and not played. The numbers are those of the run that planted the bug; other changes move them. `no` says why
the simulator cannot find it, and `not in 8` that eight seeds did not, and more have to be played.

`python -m tests.planted_bugs` plants those whose text has changed. The patches are in `tests/planted_bugs/bugs`.
"""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What found one bug."""

    digest: str
    unit_test: str
    """The first test that failed; "": none."""
    seeds: int | None
    """Seeds until one failed; None: none did."""
    seeds_played: int
    how: str = ""
    """How that seed failed."""


def missing(bugs: Sequence[PlantedBug], outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return what the table does not prove: bugs not planted since they changed, or found by no unit test."""
    problems = []
    for bug in bugs:
        outcome = outcomes.get(bug.key)
        if outcome is None or outcome.digest != bug.digest:
            problems.append(f"{bug.key}: not planted since it changed: python -m tests.planted_bugs --table")
            continue
        if not outcome.unit_test:
            problems.append(f"{bug.key}: no unit test finds it")
    return problems


def not_found_yet(bugs: Sequence[PlantedBug], outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return the bugs that no seed has found so far, although `unseen` does not say why: play more seeds."""
    return [
        f"{bug.key}: not found by {outcome.seeds_played} seeds, and `unseen` does not say why"
        for bug in bugs
        if not bug.unseen and (outcome := outcomes.get(bug.key)) is not None and outcome.seeds is None
    ]


def page(bugs: Sequence[PlantedBug], outcomes: Mapping[str, Outcome]) -> str:
    """Return the page in Markdown."""
    found = [outcomes[bug.key] for bug in bugs]
    simulated = sum(outcome.seeds is not None for outcome in found)
    tested = sum(bool(outcome.unit_test) for outcome in found)
    modules = len({bug.file for bug in bugs})
    reasons = sum(bool(bug.unseen) and outcomes[bug.key].seeds is None for bug in bugs)
    summary = (
        f"{len(bugs)} bugs in {modules} modules. Unit tests find {tested}, the simulator {simulated}. It cannot find"
    )
    lines = [HEAD, f"{summary} {reasons}, and {len(bugs) - simulated - reasons} need more seeds."]
    for file, group in groupby(bugs, key=lambda bug: bug.file):
        lines += ["", f"## {file}", "", "| rule | bug | source | seeds | unit test |", "|---|---|---|---|---|"]
        lines += [_row(bug, outcomes[bug.key]) for bug in group]
    return "\n".join(lines) + "\n"


def _row(bug: PlantedBug, outcome: Outcome) -> str:
    not_found = f"no: {bug.unseen}" if bug.unseen else f"not in {outcome.seeds_played}"
    seeds = str(outcome.seeds) if outcome.seeds is not None else not_found
    test = outcome.unit_test.split("::", 1)[-1].replace("|", "\\|")
    test = test if len(test) <= 100 else f"{test[:99]}…"
    return f"| {bug.rule or '-'} | {bug.name} | {bug.source or '-'} | {seeds} | `{test}` |"
