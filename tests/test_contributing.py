"""CONTRIBUTING.md names commands, files and markers that exist."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_every_make_target_that_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", TEXT))

    assert {"setup", "check", "test", "demo", "constraints", "clean"} <= named
    assert named <= targets


def test_every_path_that_it_names_exists() -> None:
    named = {path for path in re.findall(r"`((?:\w+/)+[\w.]*)`", TEXT) if path != "bench/NAME.py"}
    named |= set(re.findall(r"\b((?:docs/)?\w+\.md)\b", TEXT))

    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_rings_are_the_markers() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    rings = set(re.findall(r"^\| \w+ \| `(\w+)` \|", TEXT, re.MULTILINE))

    assert rings == {marker.partition(":")[0] for marker in declared}
