import os
import subprocess
import sys

import pytest

from headgate.process.priority import give_way

SHOWN = """
from pathlib import Path
from headgate.process.priority import give_way
share = Path("/proc/self/autogroup")  # Some kernels do not divide the processor among sessions.
before = share.read_text() if share.exists() else None
give_way(5)
print(None if before is None else before != share.read_text())
"""


@pytest.mark.parametrize("own_session", [True, False])
def test_a_process_that_leads_a_session_lowers_its_share_and_no_other_process_does(own_session: bool) -> None:
    command = [sys.executable, "-c", SHOWN]
    shown = subprocess.run(command, capture_output=True, text=True, start_new_session=own_session, check=True)

    assert shown.stdout.strip() in {str(own_session), "None"}


def test_a_sandbox_that_forbids_it_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The units of systemd do: their filter of system calls has all that change a priority."""

    def forbidden(_: int) -> int:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "nice", forbidden)
    give_way(5)
