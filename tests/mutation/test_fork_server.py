"""The fork server: a whole run on a small project, and the limits of a child."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.mutation.fork_server import in_child

ROOT = Path(__file__).parents[2]
MODULE = """\
LIMIT = 3


class Window:
    def accepts(self, number: int) -> bool:
        while number > 100:
            number -= 100
        return number < LIMIT

    def untested(self) -> int:
        return 1
"""
TESTS = """\
from coordinator.balancing import window
from coordinator.balancing.window import Window


def test_a_test_may_change_what_the_project_restores():
    window.LIMIT = 100


def test_a_number_below_the_limit_is_accepted():
    assert Window().accepts(2)


def test_hundreds_do_not_count():
    assert not Window().accepts(250)
"""
CONFTEST = """\
import pytest
from coordinator.balancing import window

LIMIT = window.LIMIT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    try:
        return (yield)
    finally:
        window.LIMIT = LIMIT
"""
RUN = "import sys; from pathlib import Path; from tests.mutation.__main__ import main; sys.exit(main(sys.argv[1:], Path.cwd()))"


@pytest.mark.simulation
def test_a_run_tells_which_mutants_no_test_notices(tmp_path: Path) -> None:
    files = {
        "coordinator/__init__.py": "",
        "coordinator/balancing/__init__.py": "",
        "coordinator/balancing/window.py": MODULE,
        "tests/coordinator/balancing/test_window.py": TESTS,
        "tests/coordinator/balancing/conftest.py": CONFTEST,
        "pytest.ini": "[pytest]\nmarkers = spark\npythonpath = .\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", RUN, "--packages", "coordinator.balancing", "--json"]

    finished = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert 0 == finished.returncode, finished.stderr
    report = json.loads(finished.stdout)
    outcomes = {
        fault: outcome for outcome, fault in re.findall(r"^\d+/\d+ (\w+): (.*)$", finished.stderr, re.MULTILINE)
    }
    assert report["sample"] == report["mutants"] == len(outcomes)
    assert outcomes == {
        "coordinator.balancing.window:1 (module): constant: 3 -> 4": "survived",
        "coordinator.balancing.window:1 (module): constant: 3 -> 2": "killed",
        "coordinator.balancing.window:6 Window.accepts: comparison: number > 100 -> number >= 100": "survived",
        "coordinator.balancing.window:6 Window.accepts: constant: 100 -> 101": "survived",
        "coordinator.balancing.window:6 Window.accepts: constant: 100 -> 99": "survived",
        "coordinator.balancing.window:7 Window.accepts: deletion: number -= 100 -> pass": "timeout",
        "coordinator.balancing.window:7 Window.accepts: constant: 100 -> 101": "survived",
        "coordinator.balancing.window:7 Window.accepts: constant: 100 -> 99": "survived",
        "coordinator.balancing.window:8 Window.accepts: return: return number < LIMIT -> return not number < LIMIT": "killed",
        "coordinator.balancing.window:8 Window.accepts: comparison: number < LIMIT -> number <= LIMIT": "survived",
        "coordinator.balancing.window:11 Window.untested: return: return 1 -> return not 1": "uncovered",
        "coordinator.balancing.window:11 Window.untested: constant: 1 -> 2": "uncovered",
        "coordinator.balancing.window:11 Window.untested: constant: 1 -> 0": "uncovered",
    }


def test_the_outcome_and_the_text_of_a_child_come_back() -> None:
    assert (1, "tests/test_a.py::test_b") == in_child(lambda: (1, "tests/test_a.py::test_b"), cpu_seconds=5)


@pytest.mark.simulation
def test_a_child_in_an_endless_loop_is_ended() -> None:
    def loop() -> tuple[int, str]:
        while True:
            pass

    code, text = in_child(loop, cpu_seconds=1)

    assert code < 0
    assert not text


def test_a_child_that_waits_for_nothing_is_ended() -> None:
    def wait() -> tuple[int, str]:
        threading.Event().wait()
        return 0, ""

    code, text = in_child(wait, cpu_seconds=5, idle_seconds=0.2)

    assert code == -signal.SIGKILL
    assert not text


def test_a_child_that_waits_for_a_processor_is_not_ended() -> None:
    """Other processes can leave it less time than an idle one uses; here the limit ends before it can use so much."""

    def count() -> tuple[int, str]:
        began = time.process_time()
        while time.process_time() - began < 0.2:
            pass
        return 0, "done"

    assert (0, "done") == in_child(count, cpu_seconds=5, idle_seconds=0.05)
