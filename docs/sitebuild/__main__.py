"""Build the site into build/docs: ``PYTHONPATH=.:docs python -m sitebuild``. A warning fails it: exit code 1."""

import sys
from pathlib import Path

from sphinx.cmd.build import main

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--quiet", "--nitpicky", "--fail-on-warning", "--keep-going", "--write-all", "--jobs", "auto")

if __name__ == "__main__":
    sys.exit(main([*OPTIONS, "-c", str(ROOT / "docs"), str(ROOT), str(ROOT / "build" / "docs")]))
