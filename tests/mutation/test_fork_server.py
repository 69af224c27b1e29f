"""The fork server: a whole run on one small module, and its limits."""

import json
import subprocess
import sys
from pathlib import Path

from tests.mutation.fork_server import _in_child

ROOT = Path(__file__).parents[2]


def test_a_run_reports_an_outcome_for_every_mutant() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.mutation",
        "--sample",
        "3",
        "--packages",
        "drain.compaction.policy",
        "--json",
    ]
    finished = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)

    report = json.loads(finished.stdout)

    assert 3 == report["sample"] == sum(report["outcomes"].values())
    assert len(report["survivors"]) == 3 - round(3 * report["score"])
    assert report["outcomes"].get("killed", 0) >= 1


def test_the_outcome_and_the_text_of_a_child_come_back() -> None:
    assert (1, "tests/test_a.py::test_b") == _in_child(lambda: (1, "tests/test_a.py::test_b"), cpu_seconds=5)


def test_a_child_in_an_endless_loop_is_ended() -> None:
    def loop() -> tuple[int, str]:
        while True:
            pass

    code, text = _in_child(loop, cpu_seconds=1)

    assert code < 0
    assert not text
