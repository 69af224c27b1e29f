"""``python -m tests.mutation --sample N --seed S``: how many small faults in the pure packages do unit tests notice?

Prints the survivors and the score: the share of mutants for which a test fails. Mutants in `equivalents.toml` do not count,
and are listed with their reasons. The same seed picks the same mutants as
long as the code that they change is the same. With ``--json`` the report is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.fork_server import Result, run
from tests.mutation.mutants import Mutant, mutants_of, sample
from tests.mutation.targets import PACKAGES, STATEFUL, equivalents, modules_of

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run a sample of mutants of the project at `root`; return 0 if the run itself succeeded, whatever survived."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        modules = dict.fromkeys(name for package in options.packages for name in modules_of(package, root))
    except ValueError as error:
        parser.error(str(error))
    every = [
        mutant for name in modules for mutant in mutants_of((root / f"{name.replace('.', '/')}.py").read_text(), name)
    ]
    chosen = sample(every, options.sample, options.seed)
    results: list[Result[Mutant]] = []

    def report(result: Result[Mutant]) -> None:
        results.append(result)
        sys.stderr.write(f"{len(results)}/{len(chosen)} {result.outcome}: {result.mutant.describe()}\n")
        sys.stderr.flush()

    code = run(root, chosen, report)
    summary = summarize(results, mutants=len(every), seed=options.seed)
    sys.stdout.write((json.dumps(summary, indent=2) if options.json else as_text(summary)) + "\n")
    return code if len(results) < len(chosen) else 0


def summarize(results: Sequence[Result[Mutant]], *, mutants: int, seed: int) -> dict[str, object]:
    """Return the report: the score overall, by package and by kind, and the survivors."""
    explained = equivalents()
    equivalent = [result for result in results if not result.noticed and result.mutant.key in explained]
    results = [result for result in results if result not in equivalent]
    survivors = [result for result in results if not result.noticed]
    return {
        "mutants": mutants,
        "sample": len(results),
        "seed": seed,
        "score": _score(results),
        "outcomes": dict(Counter(result.outcome for result in results)),
        "by_package": _scores(results, [result.mutant.module.rpartition(".")[0] for result in results]),
        "by_kind": _scores(results, [result.mutant.kind for result in results]),
        "equivalent": sorted(f"{each.mutant.describe()}: {explained[each.mutant.key]}" for each in equivalent),
        "survivors": sorted(f"{result.outcome}: {result.mutant.describe()}" for result in survivors),
    }


def as_text(summary: dict[str, object]) -> str:
    """Return the report for people."""
    lists = ("equivalent", "survivors")
    lines = [f"{name}: {value}" for name, value in summary.items() if name not in lists]
    for name in lists:
        found = summary[name]
        assert isinstance(found, list)
        lines += ["", f"{name.capitalize()}:", *found]
    return "\n".join(lines)


def _score(results: Sequence[Result[Mutant]]) -> float:
    return round(sum(result.noticed for result in results) / max(1, len(results)), 4)


def _scores(results: Sequence[Result[Mutant]], groups: Sequence[str]) -> dict[str, str]:
    counted = Counter(groups)
    noticed = Counter(group for group, result in zip(groups, results, strict=True) if result.noticed)
    return {group: f"{noticed[group]}/{counted[group]}" for group in sorted(counted)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=100, help="how many mutants to run (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants to choose (default: 1)")
    parser.add_argument(
        "--packages", nargs="+", default=PACKAGES, help="dotted modules or packages (default: all pure ones)"
    )
    parser.add_argument(
        "--stateful",
        dest="packages",
        action="store_const",
        const=STATEFUL,
        help="the modules with state around them instead",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
