"""`nox -s audit` passes only if every package was looked up."""

from __future__ import annotations

import pytest

from noxfile import audit_problem

FOUND = "Found 1 known vulnerability in 1 package\nName  Version ID\n----- ------- ----\nflask 0.5     PYSEC-1"
SKIPPED = "No known vulnerabilities found\nName   Skip Reason\n------ ------------\nyarl   Dependency not found on PyPI"
STRICT = "ERROR:pip_audit._cli:yarl: Dependency not found on PyPI and could not be audited: yarl (1.25.1)"
NO_NETWORK = "Traceback (most recent call last):\n  …\nrequests.exceptions.ProxyError: Max retries exceeded"


def test_the_audit_fails_for_vulnerabilities_and_shows_them_whole() -> None:
    assert audit_problem("No known vulnerabilities found\n") is None
    assert audit_problem(FOUND) == FOUND


@pytest.mark.parametrize(
    "output", [SKIPPED, STRICT, NO_NETWORK, ""], ids=["skipped", "strict", "no network", "nothing"]
)
def test_what_was_not_looked_up_is_one_line_that_says_what_to_do(output: str) -> None:
    problem = audit_problem(output)

    assert problem is not None
    assert problem.startswith("not looked up, because pypi.org must be reached for that: repeat it where it is, as in")
    assert problem.count("\n") == 0
