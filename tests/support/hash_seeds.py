"""Run a program in processes whose hash seeds differ: its result must not depend on the order of sets."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lines_by_hash_seed(program: str) -> list[list[str]]:
    """Return the lines that ``program`` prints, for each of four hash seeds."""
    return [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in "0123"
    ]
