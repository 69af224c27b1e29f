"""Decide how many chunks the next Spark job counts. Pure.

1. The first job of a process is small: how fast the machine is will only be seen.
2. After a job that took at most `QUICK_SECONDS` the next one is twice as large: it fits into the time limit of a run.
   A slower one changes nothing. A smaller one would not help: on a busy machine most of its time does not depend on it.
3. After a failed job, which may have been too slow, the next one is half as large, and smaller than the failed one.

Each job publishes its result. So a ledger of any length is counted by any machine, step by step: a job with everything
that was stored during an outage would exceed its time limit again and again, with nothing to show for it.
"""

from typing import Final

FIRST_CHUNKS: Final = 200
"""A few tasks (drain.spark.object_reader)."""
FEWEST_CHUNKS: Final = 25
QUICK_SECONDS: Final = 20.0
"""A third of the default time limit of a run."""


def next_chunks(chunks: int, *, counted: int, seconds: float, failed: bool, most_chunks: int) -> int:
    """Return the limit that follows a job of ``counted`` chunks, made under the limit ``chunks``."""
    fewest = min(FEWEST_CHUNKS, most_chunks)
    if failed:
        return max(fewest, min(chunks, counted) // 2)
    # A job that did not use the limit does not show how long a larger one takes.
    return min(most_chunks, 2 * chunks) if seconds <= QUICK_SECONDS and counted >= chunks else chunks
