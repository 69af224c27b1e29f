"""``python -m tests.simulation FIRST LAST``: play these seeds, report each, stop at the first broken invariant."""

from __future__ import annotations

import sys
import time

from tests.simulation.play import run_seed


def main(first: int, last: int) -> None:
    """Play seeds ``first`` to ``last``."""
    for seed in range(first, last + 1):
        began = time.perf_counter()
        checker = run_seed(seed)
        records = sum(len(stored) for stored in checker.stored.values())
        took = time.perf_counter() - began
        sys.stdout.write(
            f"seed {seed}: {checker.chunks} chunks, {records} records, all invariants held ({took:.1f} s)\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
