"""``python -m tests.exploration [--depth N]``: search the models deeper than the tests do."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.exploration import test_leadership_and_fencing, test_session_and_verdicts
from tests.exploration.leadership_and_fencing import LeadershipAndFencing
from tests.exploration.search import Model, explore


def models() -> Iterator[tuple[str, Callable[[], Model]]]:
    """Yield each environment of each model."""
    for name, session in test_session_and_verdicts.ENVIRONMENTS.items():
        yield f"session and verdicts: {name}", test_session_and_verdicts.world(*session)
    for name, leadership in test_leadership_and_fencing.ENVIRONMENTS.items():
        yield f"leadership and fencing: {name}", partial(LeadershipAndFencing, leadership)


def main(depth: int) -> None:
    """Search every environment to ``depth``; the first broken promise ends it with its story."""
    for name, start in models():
        began = time.perf_counter()
        explored = explore(start, depth=depth)
        took = time.perf_counter() - began
        end = "nothing lies beyond" if explored.complete else "more lie beyond"
        sys.stdout.write(f"{name}: {explored.states} states within {explored.depth} steps, {end} ({took:.0f} s)\n")
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Search all interleavings of the models.")
    parser.add_argument("--depth", type=int, default=10, help="Longest story in steps. [default: 10]")
    main(parser.parse_args().depth)
