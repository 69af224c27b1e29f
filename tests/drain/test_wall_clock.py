"""No count, age or rate depends on the clock of the machine on which Spark runs: docs/decisions/ledger-time.md."""

import re

from tests.support.source_folders import ROOT

WALL_CLOCK = re.compile(
    r"\btime\.(time|time_ns|localtime|gmtime)\b|from time import|datetime\.now|utcnow|current_(timestamp|date)|\w\.now\(\)"
)


def test_spark_reads_the_wall_clock_in_one_place_which_dates_the_runs_of_compaction() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "drain").rglob("*.py"))
        for line in path.read_text().splitlines()
        if WALL_CLOCK.search(line)
    ]
    assert ["drain/compaction/job.py: return time.time_ns() // 1_000_000"] == found
