"""`headgate top` without a terminal, and its options."""

from __future__ import annotations

import pytest


def test_without_a_terminal_it_names_the_command_for_programs(invoke):
    result = invoke("top")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "headgate: top needs a terminal; for a program there is: headgate status --json; see: headgate top --help\n"
    )


@pytest.mark.parametrize("interval", ["0.4", "nan", "soon"])
def test_an_interval_has_limits(interval, invoke):
    result = invoke("top", "--interval", interval)

    assert result.exit_code == 2
    assert "--interval" in result.stderr
