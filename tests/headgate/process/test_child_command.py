"""Children of headgate: they import headgate's packages wherever they run, and end with their parent."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from controller.snapshots.scheduler import SnapshotScheduler
from drain.checker.supervisor import service_command

ROOT = Path(__file__).parents[3]
PACKAGES = ("headgate", "coordinator", "controller", "drain", "metrics", "shard", "web")
TOOLS = ("bench", "chaos", "demo", "scale")


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    """A folder with a package of each name, as a project of a user may have one named `metrics`."""
    for name in (*PACKAGES, *TOOLS):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported from the working folder')\n")
    return tmp_path


def snapshot_command(folder: Path) -> list[str]:
    scheduler = SnapshotScheduler(
        store=None,  # type: ignore[arg-type]
        ledger_url=folder.as_uri(),
        chunks=1,
        pause_seconds=1.0,
        heads=dict,
        observer=None,  # type: ignore[arg-type]
    )
    return list(scheduler._command([]))


@pytest.mark.parametrize(
    "command",
    [
        lambda folder: service_command(folder.as_uri(), str(folder / "s"), folder)[:4],
        lambda folder: snapshot_command(folder)[:4],
    ],
    ids=["Spark process", "snapshot job"],
)
def test_a_child_imports_nothing_from_the_working_folder(hostile_folder: Path, command) -> None:
    words = [*command(hostile_folder), "--help"]
    ended = subprocess.run(words, cwd=hostile_folder, capture_output=True, text=True, timeout=120, check=False)

    assert "imported from the working folder" not in ended.stderr, ended.stderr


def test_every_child_of_headgate_is_started_so() -> None:
    """Lists such as [sys.executable, "-m", …] would import from the working folder."""
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]

    assert [] == [path for path in modules if re.search(r"""\bsys\.executable,\s*["']-m["']""", path.read_text())]


RECOUNT = """
import sys
from headgate.cli.context import CommandContext

CHILD = "import sys, time; print('headgate: started', file=sys.stderr, flush=True); time.sleep(600)"
CommandContext.run_recount(None, [sys.executable, "-c", CHILD])
"""


def test_a_recount_ends_with_its_command() -> None:
    """SIGTERM of `headgate backlog verify`. Its output ends once every process that inherited it has ended."""
    words = [sys.executable, "-c", RECOUNT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr.readline() == "headgate: started\n"
        parent.terminate()
        assert parent.stdout.read() == ""
