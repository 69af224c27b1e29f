"""Add the output of programs during a failed test to its report: new log lines, and the number of printed records.

A failure in CI cannot be inspected afterwards, so its report must contain what daemons, consumers and Spark logged.
Files are found by suffix below pytest's temporary folder; their content from before the test is left out. The
functions named pytest_* are hooks, active for the tests beside a conftest.py that imports them.
"""

import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

LOGS = frozenset({".err", ".log"})
"""Logs of daemons, commands, servers and Spark."""
RECORDS = frozenset({".out", ".jsonl"})
"""Output of commands: only its length and last line are shown."""
SHOWN_BYTES = 3000
"""Bytes shown from the end of one log."""
SHOWN_LOGS = 12
"""Number of logs shown, the most recently changed."""


class FailureReport:
    """The output since this object was created; with ``whole``, all output."""

    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        self._folder = folder
        self._before = {} if whole else {path: size for path, (size, _) in self._files(LOGS | RECORDS).items()}

    def text(self) -> str:
        """Return the report; empty if nothing was written."""
        logs, records = self._grown(LOGS), self._grown(RECORDS)
        return "\n".join([*map(self._log, logs[-SHOWN_LOGS:]), *map(self._printed, records)])

    def _grown(self, endings: frozenset[str]) -> list[Path]:
        """Return the files that have grown, the most recently changed last."""
        found = self._files(endings)
        grown = [path for path, (size, _) in found.items() if size > self._before.get(path, 0)]
        return sorted(grown, key=lambda path: (found[path][1], path))

    def _files(self, endings: frozenset[str]) -> dict[Path, tuple[int, int]]:
        """Return size and modification time of each file; running programs may remove files meanwhile."""
        found = {}
        for folder, _, names in os.walk(self._folder):
            for path in (Path(folder, name) for name in names if Path(name).suffix in endings):
                with suppress(FileNotFoundError):
                    seen = path.stat()
                    found[path] = seen.st_size, seen.st_mtime_ns
        return found

    def _log(self, path: Path) -> str:
        with path.open("rb") as file:
            file.seek(max(self._before.get(path, 0), path.stat().st_size - SHOWN_BYTES))
            return f"--- {path.relative_to(self._folder)}\n{file.read().decode(errors='replace')}"

    def _printed(self, path: Path) -> str:
        lines = path.read_text(errors="replace").splitlines()
        return f"--- {path.relative_to(self._folder)}: {len(lines)} lines, the last one: {lines[-1][:200]}"


_FOLDER = pytest.StashKey[Path]()
_FAILURE_REPORT = pytest.StashKey[FailureReport]()


@pytest.fixture(scope="session", autouse=True)
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tell the hooks where this run's temporary folders are."""
    request.config.stash[_FOLDER] = tmp_path_factory.getbasetemp()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the report. Before the first test, the folder is unknown and nothing has to be left out."""
    folder = item.config.stash.get(_FOLDER, None)
    if folder is not None:
        item.stash[_FAILURE_REPORT] = FailureReport(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the report to a failure."""
    report = yield
    folder = item.config.stash.get(_FOLDER, None)
    if report.failed and folder is not None:
        failure_report = (
            item.stash[_FAILURE_REPORT] if _FAILURE_REPORT in item.stash else FailureReport(folder, whole=True)
        )
        report.sections.append((f"output of programs during the test, below {folder}", failure_report.text()))
    return report
