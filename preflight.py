"""Checks, before `make setup` downloads anything, that this machine has what the installation needs.

One line on standard error says what is missing and what supplies it. It runs on Python 3.7 and newer, and imports
nothing that an incomplete installation may lack.

Usage: ``python3 preflight.py FOLDER MEGABYTES``, the folder of the virtual environment and what it will hold.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

OLDEST = (3, 11)
UNPACKED_MEGABYTES = 2000
"""What pip needs for a while to build pyspark: its archive, its contents and its wheel."""


def problem(folder: Path, megabytes: int) -> str | None:
    """Return what is missing for a virtual environment at ``folder``, or None."""
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:2]))
        return (
            f"headgate needs Python 3.11 or newer, and {sys.executable} is Python {found}: "
            "apt-get install python3.11 python3.11-venv, then make setup PYTHON=python3.11"
        )
    try:
        import ensurepip  # noqa: F401, PLC0415 - Debian packages it separately
        import venv  # noqa: F401, PLC0415
    except ImportError:
        return f"{sys.executable} cannot create virtual environments: apt-get install python3-venv"
    for place, needed, remedy in (
        (folder.absolute().parent, megabytes, "free space, or clone headgate into another file system"),
        (Path(tempfile.gettempdir()), UNPACKED_MEGABYTES, "free space, or make setup TMPDIR=/another/folder"),
    ):
        try:
            with tempfile.TemporaryFile(dir=place):
                free = shutil.disk_usage(place).free // 1_000_000
        except OSError as error:
            return f"{place} is not writable ({error.strerror}): clone headgate into a folder of yours"
        if free < needed:
            return f"{place} has {free} MB free, and {needed} MB are needed: {remedy}"
    return None


if __name__ == "__main__":
    lacking = problem(Path(sys.argv[1]), int(sys.argv[2]))
    if lacking is not None:
        sys.exit(f"headgate: {lacking}")
