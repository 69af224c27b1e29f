import subprocess
import sys

import pytest

FAULTS = """
import resource
from headgate.process.allocator import keep_freed_memory
{call}
for _ in range(20):
    bytearray(8_000_000)  # 2 000 pages
    before = before if _ else resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has it; it runs wherever the daemon does")
def test_the_pages_of_a_freed_buffer_serve_the_next_one() -> None:
    plain, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS.format(call=call)]))
        for call in ("", "keep_freed_memory()")
    )
    assert kept < 1_000 < plain
