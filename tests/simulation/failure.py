"""A failed run, what it has in common with others, and the fewest parts of its plan with which it still fails."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import Plan
from tests.simulation.play import play
from tests.simulation.shrinking import shrink

SALTS = 3
"""Other delays and pauses that are tried before a part is kept: leaving out a part moves the others a little."""
_VALUE = re.compile(r"(?<!\w)b?'[^']*'|(?<!\w)b?\"[^\"]*\"|\{[^}]*\}|\[[^]]*\]|\d+")


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that ended with an error."""

    plan: Plan
    error: BaseException
    checker: InvariantChecker

    @property
    def cause(self) -> BaseException:
        """The first error within groups of errors; a violation of an invariant before all others."""
        errors = _leaves(self.error)
        return next((each for each in errors if isinstance(each, BrokenPromiseError)), errors[0])

    @property
    def kind(self) -> str:
        """What failures of one bug share: the error without its values."""
        return f"{type(self.cause).__name__}: {_VALUE.sub('#', str(self.cause))}"

    @property
    def command(self) -> str:
        """The command that plays the same run again."""
        words = ["python -m tests.simulation", f"--seed {self.plan.seed}"]
        if self.plan.salt:
            words.append(f"--salt {self.plan.salt}")
        return " ".join([*words, f"--parts {','.join(self.plan.parts)}"])

    def report(self) -> str:
        """Return the story, the error and the command."""
        cause = f"{type(self.cause).__name__}: {self.cause}"
        return f"{self.checker.story.table()}\n\n{cause}\nreplay: {self.command}"


def failure_of(plan: Plan, checker: InvariantChecker | None = None) -> Failure | None:
    """Play ``plan`` before ``checker``; return how it failed, or None."""
    checker = checker or InvariantChecker()
    try:
        play(plan, checker)
    except Exception as error:  # noqa: BLE001 - whatever a bug raised is the result
        return Failure(plan, error, checker)
    return None


def shrunk(
    failure: Failure,
    most_runs: int,
    progress: Callable[[str], None],
    run: Callable[[Plan], Failure | None] = failure_of,
) -> Failure:
    """Return the smallest failure of the same kind that ``most_runs`` runs find."""
    best, runs = failure, 0

    def still_fails(parts: Sequence[str]) -> bool:
        nonlocal best, runs
        for salt in sorted(range(SALTS), key=lambda salt: salt != best.plan.salt):
            if runs >= most_runs:
                return False
            runs += 1
            found = run(failure.plan.only(parts, salt))
            if found is not None and found.kind == failure.kind:
                best = found
                progress(f"run {runs}: {len(found.plan.parts)} of {len(failure.plan.parts)} parts")
                return True
        return False

    shrink(failure.plan.parts, still_fails)
    return best


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
