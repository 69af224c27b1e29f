"""`make test` collects some tiers from their folders only, which saves half a minute: no other folder may have such tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MAKEFILE = (TESTS.parent / "Makefile").read_text()
SYSTEM_FOLDERS = re.findall(r"tests/(\w+)", re.findall(r"^SYSTEM_TESTS := (.*)$", MAKEFILE, re.MULTILINE)[0])


@pytest.mark.parametrize(
    ("tier", "folders"),
    [
        pytest.param("security", ["security"], id="security"),
        pytest.param("spark", ["drain", *SYSTEM_FOLDERS], id="spark"),
        pytest.param("system", SYSTEM_FOLDERS, id="system"),
    ],
)
def test_the_tests_of_a_tier_are_in_its_folders(tier: str, folders: list[str]) -> None:
    marked = [
        path.relative_to(TESTS)
        for path in TESTS.rglob("test_*.py")
        if re.search(rf"\bmark\.{tier}\b", path.read_text())
    ]
    assert marked
    assert [] == [str(path) for path in marked if path.parts[0] not in folders]
