"""One child process: how it starts, ends, and dies with its parent."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from controller.snapshots.scheduler import SnapshotScheduler
from drain.checker.supervisor import service_command
from headgate.log.lossy_output import take_lost_lines
from headgate.process import parent_death_signal
from headgate.process.child_process import ChildProcess, rotate_log
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


async def started(folder: Path, script: str) -> ChildProcess:
    """Start a shell script, and return once it has printed its first line."""
    child = await ChildProcess.start("sh", "-c", script, log_path=folder / "log")
    await until(lambda: child.output_path.read_text().endswith("\n"))
    return child


@pytest.mark.parametrize(
    ("script", "in_time", "code"),
    [("echo; exec sleep 600", True, -15), ("trap '' TERM; echo; exec sleep 600", False, -9), ("echo; exit 3", True, 3)],
    ids=["ends on SIGTERM", "ignores SIGTERM", "has ended already"],
)
async def test_stop_asks_first_and_then_kills(tmp_path: Path, script: str, in_time: bool, code: int) -> None:
    child = await started(tmp_path, script)
    if code == 3:
        await child.wait()

    assert in_time == await child.stop(0.2 if code == -9 else 30)
    assert code == child.returncode


@pytest.mark.parametrize("ended", [False, True])
async def test_what_a_child_started_ends_with_it_or_later_with_its_group(ended: bool, tmp_path: Path) -> None:
    child = await started(tmp_path, "sleep 600 & echo $!" + "; exec sleep 600" * (not ended))
    grandchild = int(child.output_path.read_text())
    if ended:
        await child.wait()
    assert _runs(grandchild)
    await child.stop(30, whole_group=ended)
    await until(lambda: not _runs(grandchild))


async def test_a_frozen_child_can_be_resumed_and_killed(tmp_path: Path) -> None:
    child = await started(tmp_path, "echo; exec sleep 600")
    child.freeze()
    await until(lambda: _state(child.pid) == "T")
    child.thaw()
    await until(lambda: _state(child.pid) == "S")
    child.freeze()

    assert -9 == await child.kill()
    child.thaw()  # a signal to a child that has ended is ignored


async def test_output_and_log_may_be_separate_files(tmp_path: Path) -> None:
    child = await ChildProcess.start(
        *("sh", "-c", "echo $WORD; echo log >&2"),
        log_path=tmp_path / "a.log",
        output_path=tmp_path / "a.out",
        environ={"WORD": "output"},
    )
    await child.wait()

    assert ("output\n", "log\n") == (child.output_path.read_text(), child.log_path.read_text())


async def test_a_missing_program_is_reported_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file or directory: 'no-such-program'"):
        await ChildProcess.start("no-such-program", log_path=tmp_path / "log")


async def test_a_command_whose_parent_has_ended_already_does_not_run(tmp_path: Path) -> None:
    """The parent may die between the fork and the request for its death signal."""
    made = tmp_path / "made"

    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", parent_death_signal.__file__, str(os.getpid() + 1), "touch", str(made))
    )

    assert await done.wait() == 1
    assert not made.exists()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _runs(pid: int) -> bool:
    try:
        return _state(pid) != "Z"
    except FileNotFoundError:
        return False


async def test_a_child_whose_log_cannot_be_opened_runs_without_it(tmp_path: Path) -> None:
    """Its supervisor would try in vain to start it for as long as a disk is full. The lost log counts as a line."""
    take_lost_lines()
    child = await ChildProcess.start("true", log_path=tmp_path / "missing" / "log")

    assert 0 == await child.wait()
    assert 1 == take_lost_lines()


def test_a_large_log_that_cannot_be_renamed_grows(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"12345")
    (tmp_path / "log.1").mkdir()
    rotate_log(tmp_path / "log", max_bytes=4)

    assert 5 == (tmp_path / "log").stat().st_size


# Children of headgate: they import headgate's packages wherever they run, and end with their parent.


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
