import subprocess
import sys

FAULTS = """
from resource import RUSAGE_SELF, getrusage
from headgate.process.resources import keep_freed_memory
{call}
bytearray(8_000_000)  # 2 000 pages
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(20):
    bytearray(8_000_000)
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def test_the_pages_of_a_freed_buffer_serve_the_next_one() -> None:
    programs = [FAULTS.format(call=call) for call in ("", "keep_freed_memory()")]
    plain, kept = (int(subprocess.check_output([sys.executable, "-c", program])) for program in programs)
    assert kept < 1_000 < plain
