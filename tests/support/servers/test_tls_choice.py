"""Half of the files of system tests run with TLS by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.tls_choice import WITH_TLS, description, uses_tls

FILES = {path.name for path in (Path(__file__).parents[2] / "system").glob("test_*.py")}


def test_it_is_half_of_the_files_and_all_that_share_the_node() -> None:
    shared = {path for path in FILES if "node: Node" in (Path(__file__).parents[2] / "system" / path).read_text()}

    assert WITH_TLS < FILES
    assert 0.4 <= len(WITH_TLS) / len(FILES) <= 0.6
    assert shared <= WITH_TLS, "there is one node"


@pytest.mark.parametrize(("choice", "used"), [("half", {True, False}), ("all", {True}), ("none", {False})])
def test_the_option_chooses(choice: str, used: set[bool]) -> None:
    assert used == {uses_tls(choice, name) for name in FILES}
    assert description(choice).startswith("system tests with TLS: ")
