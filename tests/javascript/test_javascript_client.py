"""The package of the client in JavaScript; test_conformance.py and test_javascript_consumer.py run it."""

import subprocess
from pathlib import Path

import pytest

from tests.support.source_folders import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def test_the_lock_file_names_no_registry_host() -> None:
    lock = (ROOT / "clients" / "javascript" / "package-lock.json").read_text()

    assert "integrity" in lock
    assert "resolved" not in lock
    assert "://" not in lock


def test_the_types_describe_the_package(programs: Path) -> None:
    tsc = programs.parent / "node_modules" / "typescript" / "bin" / "tsc"
    options = "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022"
    done = subprocess.run(
        ("node", tsc, *options, programs / "typed.mts"), cwd=programs, capture_output=True, check=False
    )

    assert (0, b"") == (done.returncode, done.stdout)
