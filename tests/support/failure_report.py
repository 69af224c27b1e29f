"""What a failed test shows of the programs that it ran: what their logs gained meanwhile, and how far they had printed.

A failure in CI cannot be looked at afterwards, so its report must say what the daemons, the consumers and Spark said.
Files are found by their names below pytest's folder, whoever wrote them; what was in them before the test is left out.
The functions named pytest_* are hooks: a conftest.py that imports them has them for the tests beside it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

LOGS = frozenset({".err", ".log"})
"""What daemons, commands, servers and Spark say."""
RECORDS = frozenset({".out", ".jsonl"})
"""What commands print: only how much, and the last line."""
SHOWN_BYTES = 3000
"""The end of one log."""
SHOWN_LOGS = 12
"""Those that grew last."""


class FailureReport:
    """One test's account, from the moment at which this is made; or, ``whole``, with all that was written before."""

    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        self._folder = folder
        self._before = {} if whole else {path: size for path, (size, _) in self._files(LOGS | RECORDS).items()}

    def text(self) -> str:
        """Return what was written since; empty if nothing was."""
        logs, records = self._grown(LOGS), self._grown(RECORDS)
        return "\n".join([*map(self._log, logs[-SHOWN_LOGS:]), *map(self._printed, records)])

    def _grown(self, endings: frozenset[str]) -> list[Path]:
        """Return the files that were written to since, the last one last."""
        found = self._files(endings)
        grown = [path for path, (size, _) in found.items() if size > self._before.get(path, 0)]
        return sorted(grown, key=lambda path: (found[path][1], path))

    def _files(self, endings: frozenset[str]) -> dict[Path, tuple[int, int]]:
        """Return size and time of last change of each file; programs that still run may remove others meanwhile."""
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
    """Remember where this run's temporary folders are, for the hooks."""
    request.config.stash[_FOLDER] = tmp_path_factory.getbasetemp()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin the account. Before the first test there is nothing that could be left out."""
    folder = item.config.stash.get(_FOLDER, None)
    if folder is not None:
        item.stash[_FAILURE_REPORT] = FailureReport(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the account to the report of a failure."""
    report = yield
    folder = item.config.stash.get(_FOLDER, None)
    if report.failed and folder is not None:
        failure_report = (
            item.stash[_FAILURE_REPORT] if _FAILURE_REPORT in item.stash else FailureReport(folder, whole=True)
        )
        report.sections.append((f"what was said meanwhile, below {folder}", failure_report.text()))
    return report
