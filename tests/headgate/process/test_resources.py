"""Processor time of a process with its children, and the memory that the allocator keeps."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.process.resources import all_but_one, give_way, process_tree, processor_seconds, run_on, wants_processor
from tests.support.waiting import until

PROGRAM = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


def test_the_time_of_children_counts_and_that_they_want_more() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True) as process:
        try:
            asyncio.run(until(lambda: processor_seconds(process.pid) > 1))
            assert wants_processor(process.pid)
            os.killpg(process.pid, signal.SIGSTOP)
            asyncio.run(until(lambda: not wants_processor(process.pid)))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert processor_seconds(process.pid) == 0


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


SHOWN = """
from pathlib import Path
from headgate.process.resources import give_way
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


@pytest.mark.parametrize(("cores", "left"), [({0, 1}, {1}), ({2, 5, 7}, {5, 7}), ({3}, {3})])
def test_background_work_leaves_the_first_core_unless_it_has_no_other(cores: set[int], left: set[int]) -> None:
    assert all_but_one(cores) == left


def test_the_threads_of_all_descendants_change_their_cores() -> None:
    cores = os.sched_getaffinity(0)
    sleeping = "import threading; threading.Thread(target=input).start(); print(1, flush=True); input()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeping!r}])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout.readline(), "it runs, and its child does"
        try:
            for wanted in (all_but_one(cores), cores):
                run_on(wanted, started.pid)
                tree = list(process_tree(started.pid))
                threads = [int(each.name) for pid in tree for each in Path(f"/proc/{pid}/task").iterdir()]
                assert len(tree) == 2
                assert {frozenset(os.sched_getaffinity(each)) for each in threads} == {frozenset(wanted)}
        finally:
            started.communicate(b"\n\n")
