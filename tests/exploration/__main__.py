"""``python -m tests.exploration [--depth N]``: search the models deeper than the tests do."""

from __future__ import annotations

import argparse
import sys
import time

from tests.exploration.search import explore
from tests.exploration.test_session_and_verdicts import ENVIRONMENTS, world


def main(depth: int) -> None:
    """Search every environment to ``depth``; the first broken promise ends it with its story."""
    for name, budget in ENVIRONMENTS.items():
        began = time.perf_counter()
        explored = explore(world(budget), depth=depth)
        took = time.perf_counter() - began
        end = "nothing lies beyond" if explored.complete else "more lie beyond"
        sys.stdout.write(f"{name}: {explored.states} states within {explored.depth} steps, {end} ({took:.0f} s)\n")
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Search all interleavings of the models.")
    parser.add_argument("--depth", type=int, default=10, help="Longest story in steps. [default: 10]")
    main(parser.parse_args().depth)
