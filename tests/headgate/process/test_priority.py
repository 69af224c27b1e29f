import subprocess
import sys

import pytest

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
