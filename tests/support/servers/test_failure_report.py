"""The failure report, with files but without programs, so part of the unit tier."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.servers.failure_report import SHOWN_BYTES, SHOWN_LOGS, FailureReport

REPOSITORY = Path(__file__).parents[3]


def test_it_shows_new_log_lines_and_the_number_of_printed_records(tmp_path: Path):
    old, grown, new = (tmp_path / name for name in ("old.log", "grown.err", "node/drain/drain.log"))
    new.parent.mkdir(parents=True)
    old.write_text("not of this test\n")
    grown.write_text("before\n")
    failure_report = FailureReport(tmp_path)
    assert failure_report.text() == ""

    with grown.open("a") as file:
        file.write("and then\n")
    new.write_text("Spark\n")
    (tmp_path / "consumer.out").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "a folder.log").mkdir()
    text = failure_report.text()

    assert text.splitlines() == [
        "--- grown.err",
        "and then",
        "",
        "--- node/drain/drain.log",
        "Spark",
        "",
        '--- consumer.out: 2 lines, the last one: {"n": 2}',
    ]


def test_it_shows_the_ends_of_the_logs_that_changed_last(tmp_path: Path):
    failure_report = FailureReport(tmp_path)
    for number in range(SHOWN_LOGS + 3):
        (tmp_path / f"{number}.log").write_bytes(b"x" * SHOWN_BYTES + b"the end \xff")
    text = failure_report.text()

    assert text.count("the end") == text.count("---") == SHOWN_LOGS
    assert len(text) < SHOWN_LOGS * (SHOWN_BYTES + 100)


def test_a_failed_test_reports_only_its_own_output(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("from tests.support.servers.failure_report import *\n")
    (tmp_path / "test_programs.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def folder(tmp_path_factory):\n"
        "    made = tmp_path_factory.mktemp('cluster')\n"
        "    (made / 'daemon.err').write_text('it started\\n')\n"
        "    return made\n"
        "def say(folder, text):\n"
        "    with (folder / 'daemon.err').open('a') as file: file.write(text)\n"
        "def test_that_fails_at_once(folder):\n"
        "    say(folder, 'the first one\\n')\n"
        "    assert False\n"
        "def test_that_passes(folder):\n"
        "    say(folder, 'not in the report\\n')\n"
        "def test_that_fails(folder):\n"
        "    say(folder, 'this is why\\n')\n"
        "    assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir=."]
    run = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'temporary'}"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "2 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    first, last = run.stdout.split("--- cluster0/daemon.err\n")[1:]
    assert first.startswith("it started\nthe first one\n")
    assert last.startswith("this is why\n")
    assert "not in the report" not in run.stdout
