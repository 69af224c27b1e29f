import subprocess
import sys

import pytest

SHOWN = """
from pathlib import Path
from headgate.process.priority import give_way
give_way(5)
share = Path("/proc/self/autogroup")
print(share.read_text().split()[-1] if share.exists() else "undivided")
"""


@pytest.mark.parametrize(("own_session", "share"), [(True, "5"), (False, "0")])
def test_a_process_that_leads_a_session_lowers_its_share_and_no_other_process_does(
    own_session: bool, share: str
) -> None:
    command = [sys.executable, "-c", SHOWN]
    shown = subprocess.run(command, capture_output=True, text=True, start_new_session=own_session, check=True)

    assert shown.stdout.strip() in {share, "undivided"}, "some kernels do not divide the processor among sessions"
