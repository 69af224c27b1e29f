"""The documents name links, files, make targets and markers that exist."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
PLACEHOLDERS = {"bench/SUBJECT/NAME.py"}


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them; none if `make docs` makes them, and checks them."""
    if "{generated}" in document.read_text():
        return set()
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(name: str) -> Iterator[str]:
    document = ROOT / name
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        headings = anchors(linked) if linked.suffix == ".md" and linked.exists() else set()
        if not linked.exists() or (anchor and headings and anchor not in headings):
            yield f"{name}: {target}"


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    assert [] == [link for name in DOCUMENTS for link in broken_links(name)]


def test_every_file_that_is_named_exists() -> None:
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    pattern = re.compile(rf"`((?:{folders})/[\w./-]*)(?:::\w+)?`")
    named = {(name, path) for name in DOCUMENTS for path in pattern.findall((ROOT / name).read_text())}

    assert [] == sorted((name, path) for name, path in named if not (ROOT / path).exists() and path not in PLACEHOLDERS)


def test_every_make_target_that_contributing_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", CONTRIBUTING))

    assert {"setup", "check", "test", "demo", "constraints", "clean"} <= named
    assert named <= targets


def test_the_tiers_in_contributing_are_the_markers() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    tiers = set(re.findall(r"^\| \w+ \| `(\w+)` \|", CONTRIBUTING, re.MULTILINE))

    assert tiers == {marker.partition(":")[0] for marker in declared}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_an_example_imports_what_it_says_to_install(path: Path) -> None:
    source = path.read_text()
    modules = {name.split(".")[0] for name in re.findall(r"^(?:from|import) ([\w.]+)", source, re.MULTILINE)}
    said = "".join(each.read_text() for each in (path, path.parent / "README.md") if each.exists())
    installed = "".join(re.findall(r"pip install (.*)", said)) + " headgate_faststream pydantic"  # what those bring

    assert [] == [each for each in modules - sys.stdlib_module_names if each not in installed]
