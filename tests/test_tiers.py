"""`make test` collects some tiers from their folders only, which saves a minute: no other folder may have such tests."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MAKEFILE = (TESTS.parent / "Makefile").read_text().replace("\\\n", " ")


def folders_in(variable: str) -> list[str]:
    return re.findall(r"\S+", re.findall(rf"^{variable} := (.*)$", MAKEFILE, re.MULTILINE)[0])


def recipe(target: str) -> str:
    return re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[0]


@pytest.mark.parametrize("tier", ["security", "simulation", "system"])
def test_what_make_test_leaves_out_is_run_by_make_nightly(tier: str) -> None:
    assert f'-m "{tier} and not nightly"' in recipe(tier)
    assert re.search(rf'-m "{tier}( and nightly)?"', recipe("nightly"))


@pytest.mark.parametrize(
    ("tier", "folders"),
    [
        pytest.param("contract", folders_in("CONTRACT_TESTS"), id="contract"),
        pytest.param("security", ["tests/security"], id="security"),
        pytest.param("simulation", folders_in("SIMULATION_TESTS"), id="simulation"),
        pytest.param("spark", ["tests/drain", *folders_in("SYSTEM_TESTS")], id="spark"),
        pytest.param("system", folders_in("SYSTEM_TESTS"), id="system"),
    ],
)
def test_the_tests_of_a_tier_are_in_its_folders(tier: str, folders: list[str]) -> None:
    marked = [path for path in TESTS.rglob("test_*.py") if re.search(rf"\bmark\.{tier}\b", path.read_text())]
    places = [TESTS.parent / folder for folder in folders]

    assert marked
    assert [] == [str(path) for path in marked if not any(path.is_relative_to(place) for place in places)]
