"""The packages that `make setup` installs: pinned, checked against hashes, and named with their licenses."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DAEMON = tomllib.loads((ROOT / "daemon/pyproject.toml").read_text())
HOOK = DAEMON["tool"]["hatch"]["metadata"]["hooks"]["custom"]
"""The daemon's requirements, to which hatch_build.py adds the version of headgate."""
MAKEFILE = (ROOT / "Makefile").read_text()
FILES = tuple(sorted(path.name for path in ROOT.glob("constraints*.txt")))
WORDS_OF_A_LICENSE = re.compile(r"Apache|MIT|BSD|ISC|GPL|EPL|Python Software|PSF")


def pins(name: str) -> dict[str, list[str]]:
    """Return package → hashes."""
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text()):
        if not entry.startswith("#"):
            match = re.match(r"([a-z0-9-]+)==[\w.]+", entry)
            assert match, f"not a pinned package: {entry[:60]}"
            found[match[1]] = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
    return found


def names(requirements: list[Any]) -> set[str]:
    """Return the packages, without our own and without groups that a group includes."""
    found = {re.split(r"[\s<>=\[~!;]", each)[0].lower() for each in requirements if isinstance(each, str)}
    return found - {"headgate-client", "headgate-daemon"}


def notice() -> dict[str, str]:
    """Return package → license."""
    table = (ROOT / "NOTICE").read_text().partition("package               license\n")[2]
    return dict(re.findall(r"^(\S+) +(\S.*)$", table, re.MULTILINE))


@pytest.mark.parametrize("name", FILES)
def test_every_package_is_pinned_with_hashes_and_without_an_address(name: str) -> None:
    assert [] == [package for package, hashes in pins(name).items() if not hashes]
    assert "://" not in (ROOT / name).read_text()


@pytest.mark.parametrize(
    ("name", "requirements"),
    [
        ("constraints-client.txt", CLIENT["project"]["dependencies"]),
        ("constraints-daemon.txt", HOOK["dependencies"] + HOOK["optional-dependencies"]["spark"]),
        ("constraints.txt", HOOK["dependencies"] + HOOK["optional-dependencies"]["up"]),
        ("constraints.txt", CLIENT["dependency-groups"]["demo"]),
        ("constraints-dev.txt", HOOK["optional-dependencies"]["connect"]),
        ("constraints-dev.txt", CLIENT["dependency-groups"]["dev"]),
        ("constraints-docs.txt", CLIENT["dependency-groups"]["docs"]),
        ("constraints-peers.txt", CLIENT["dependency-groups"]["peers"]),
        ("constraints-build.txt", CLIENT["build-system"]["requires"]),
    ],
)
def test_every_requirement_is_pinned(name: str, requirements: list[Any]) -> None:
    assert names(requirements) <= pins(name).keys()


def test_uv_takes_the_client_from_this_folder() -> None:
    assert {CLIENT["project"]["name"]} == DAEMON["tool"]["uv"]["sources"].keys()


def test_the_build_backend_is_the_one_that_setup_installs() -> None:
    [pin] = {*CLIENT["build-system"]["requires"], *DAEMON["build-system"]["requires"]}
    assert f"\n{pin} \\\n" in (ROOT / "constraints-build.txt").read_text()


def test_setup_installs_nothing_without_checking_its_hash() -> None:
    """The package itself is installed from this folder, with `--no-index` and without dependencies."""
    installs = re.findall(r"^.*(?:\$\(PIP\)|-m pip) install.*$", MAKEFILE, re.MULTILINE)

    assert 2 == len(installs)
    for line in installs:
        assert "--no-build-isolation" in line
        assert "--require-hashes" in line or {"--no-index", "--no-deps"} <= set(line.split())


def test_the_notice_names_every_package_that_is_installed_for_users() -> None:
    assert notice().keys() == pins("constraints.txt").keys()


@pytest.mark.parametrize("package", sorted(notice()))
def test_the_license_in_the_notice_is_the_one_that_the_package_declares(package: str) -> None:
    try:
        declared = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        assert "colorama" == package, "only Windows needs it"
        return
    stated = declared.get("License-Expression")
    if stated is not None:
        assert stated == notice()[package]
        return
    classifiers = [each for each in declared.get_all("Classifier", []) if each.startswith("License ::")]
    texts = [(declared.get("License") or "")[:100], *classifiers]
    assert set(WORDS_OF_A_LICENSE.findall(" ".join(texts))) & set(WORDS_OF_A_LICENSE.findall(notice()[package]))


@pytest.mark.nightly
@pytest.mark.system  # starts a program that takes three seconds
def test_make_sbom_writes_every_package_with_its_hashes(tmp_path: Path) -> None:
    target = tmp_path / "bill.json"
    command = re.search(r"cyclonedx-py (requirements .*)$", MAKEFILE, re.MULTILINE)
    assert command, "the Makefile has no such command"
    arguments = command[1].replace("$(SBOM)", str(target)).split()
    subprocess.run([Path(sys.executable).with_name("cyclonedx-py"), *arguments], cwd=ROOT, check=True, timeout=60)

    bill = json.loads(target.read_text())
    assert {component["name"] for component in bill["components"]} == pins("constraints.txt").keys()
    for component in bill["components"]:
        written = {item["content"] for each in component["externalReferences"] for item in each.get("hashes", [])}
        assert written == set(pins("constraints.txt")[component["name"]])
