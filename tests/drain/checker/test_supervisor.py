"""The supervisor with real child processes that misbehave on request. No Spark."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from drain.checker.supervisor import LOG_NAME, DrainSupervisor, SupervisorTimes
from headgate.backoff import Backoff, RestartPolicy
from headgate.process.child_process import ChildProcess
from tests.support.waiting import until

pytestmark = pytest.mark.real_time

QUICK = SupervisorTimes(ping_interval=0.05, ping=30.0, retry=0.02, stop=30.0)
POLICY = RestartPolicy(start_timeout_seconds=60.0, pauses=Backoff(first_seconds=0.05, longest_seconds=0.1))
ROOT = Path(__file__).parents[3]


class Supervised:
    """A supervisor of the fake service, and the states that it reported."""

    def __init__(self, tmp_path, mode, times=QUICK, policy=POLICY, **options):
        self.states: list[tuple[str, str]] = []
        self.reported_restarts = 0
        self._changed = asyncio.Event()
        command = [sys.executable, "-m", "tests.support.fakes.drain_service", str(tmp_path / "s"), mode]
        self.supervisor = DrainSupervisor(
            socket=str(tmp_path / "s"),
            folder=tmp_path / "folder",
            on_state=self._on_state,
            on_restart=self._restarted,
            command=command,
            times=times,
            policy=policy,
            rng=random.Random(1),
            **options,
        )

    def _restarted(self):
        self.reported_restarts += 1

    def _on_state(self, state, reason):
        self.states.append((state, reason))
        self._changed.set()

    async def until(self, state, times=1):
        """Return the reason of the ``times``-th report of ``state``."""
        async with asyncio.timeout(60):
            while len(found := [reason for reported, reason in self.states if reported == state]) < times:
                self._changed.clear()
                await self._changed.wait()
        return found[times - 1]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    """The child process imports the packages from its working folder."""
    monkeypatch.chdir(ROOT)


def runs(pid):
    """Return whether a process runs. After its end it has no command line."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).cmdline())
    return False


async def gone(pid):
    await until(lambda: not runs(pid))


async def test_the_state_is_ready_once_the_process_answers_and_leaving_stops_it(tmp_path):
    supervised = Supervised(tmp_path, "well")
    async with supervised.supervisor:
        await supervised.until("ready")
        pid = supervised.supervisor.pid
        assert pid is not None

    assert [state for state, _ in supervised.states] == ["starting", "ready"]
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("free_bytes", [0, 1 << 30])
async def test_a_process_that_ended_is_restarted_and_a_full_disk_is_named(tmp_path, monkeypatch, free_bytes):
    """Its log may lack the reason then. On a busy machine a ping fails before its end is known."""
    wait = ChildProcess.wait

    async def late(process: ChildProcess) -> int:
        return (await wait(process), await asyncio.sleep(0.2))[0]

    monkeypatch.setattr(ChildProcess, "wait", late)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    supervised = Supervised(tmp_path, "well")
    async with supervised.supervisor:
        await supervised.until("ready")
        first = supervised.supervisor.pid
        os.kill(first, signal.SIGKILL)

        reason = await supervised.until("degraded")
        assert "ended with code -9" in reason
        assert ("its disk is full" in reason) == (not free_bytes)
        await supervised.until("ready", times=2)
        assert first != supervised.supervisor.pid
        assert supervised.reported_restarts == 1


async def test_a_hung_process_is_restarted(tmp_path):
    """A stopped process accepts connections, never answers, and does not react to SIGTERM: nothing waits for that."""
    supervised = Supervised(tmp_path, "well")
    async with supervised.supervisor:
        await supervised.until("ready")
        first = supervised.supervisor.pid
        os.kill(first, signal.SIGSTOP)
        # Only now: the start may be slow.
        supervised.supervisor._times = replace(QUICK, ping=0.1, stop=600.0, stop_hung=0.1)

        assert "no answer from" in await supervised.until("degraded")
        await supervised.until("ready", times=2)
        assert not psutil.pid_exists(first)


async def test_a_process_that_waits_for_a_processor_is_not_hung(tmp_path):
    """On a busy machine a restart would take what the process lacks."""
    looks = []
    supervised = Supervised(tmp_path, "well", waits_for_processor=lambda pid: bool(looks.append(pid)) or True)
    async with supervised.supervisor:
        await supervised.until("ready")
        first = supervised.supervisor.pid
        supervised.supervisor._times = replace(QUICK, ping=0.5, sample=0.1, stop_hung=0.1)
        os.kill(first, signal.SIGSTOP)
        await until(lambda: len(looks) > 6)  # longer than the limit

        assert [state for state, _ in supervised.states] == ["starting", "ready"]
        assert {supervised.supervisor.pid} == {first, *looks}
        assert "no answer from" in await supervised.until("degraded"), "it is hung after ten times the limit"


async def test_a_process_that_works_and_never_answers_is_hung(tmp_path, monkeypatch):
    supervised = Supervised(tmp_path, "well", waits_for_processor=lambda _: True)
    async with supervised.supervisor:
        await supervised.until("ready")
        monkeypatch.setattr("drain.checker.supervisor.processor_seconds", lambda _: time.monotonic())
        supervised.supervisor._times = replace(QUICK, ping=0.5, sample=0.1, stop_hung=0.1)
        os.kill(supervised.supervisor.pid, signal.SIGSTOP)

        assert "within 0.5 s" in await supervised.until("degraded")


async def test_a_process_that_never_answers_is_restarted_with_growing_pauses_and_limits(tmp_path):
    policy = RestartPolicy(
        start_timeout_seconds=0.1, stable_seconds=0.01, pauses=Backoff(first_seconds=0.1, longest_seconds=60, jitter=0)
    )
    supervised = Supervised(tmp_path, "mute", policy=policy)
    async with supervised.supervisor:
        await supervised.until("degraded", times=3)

    reasons = [reason for state, reason in supervised.states if state == "degraded"]
    assert [reason.rpartition("; next start in ")[2] for reason in reasons] == ["0.1 s", "0.2 s", "0.4 s"]
    for limit, reason in zip(("0.1 s", "0.2 s", "0.4 s"), reasons, strict=True):
        assert "the Spark process was not ready after" in reason
        assert f"limits: {limit} without a line in {tmp_path / 'folder' / LOG_NAME} and a second of" in reason


async def test_a_start_may_be_slow_and_silent_while_the_process_works(tmp_path):
    policy = RestartPolicy(start_timeout_seconds=2.0, pauses=POLICY.pauses)
    supervised = Supervised(tmp_path, "busy", replace(QUICK, sign=0.02), policy)
    async with supervised.supervisor:
        await supervised.until("ready")

    assert not supervised.reported_restarts


SAYS_WHY_ONCE = "test -e {0}/said && exit 3; touch {0}/said; echo headgate: no Java found >&2; exit 2"


@pytest.mark.parametrize(
    ("command", "reasons"),
    [
        (["{0}/nothing"], ["cannot be started: No such file"] * 2),
        (["sh", "-c", SAYS_WHY_ONCE], ["code 2: no Java found (log: {0}/folder/", "code 3, see {0}/folder/"]),
        (["sh", "-c", "echo Traceback; exit 1"], ["code 1, see {0}/folder/"] * 2),
    ],
    ids=["no command", "it says why once", "it does not say why"],
)
async def test_the_state_says_why_a_process_does_not_start(tmp_path, command, reasons):
    supervised = Supervised(tmp_path, "well")
    supervised.supervisor._command = [each.format(tmp_path) for each in command]
    async with supervised.supervisor:
        for times, reason in enumerate(reasons, 1):
            assert reason.format(tmp_path) in await supervised.until("degraded", times)


async def test_a_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path):
    supervised = Supervised(tmp_path, "stubborn", replace(QUICK, stop=0.1))
    async with supervised.supervisor:
        await supervised.until("ready")
        pid = supervised.supervisor.pid
        grandchild = int((tmp_path / "s.child").read_text())

    assert not psutil.pid_exists(pid)
    await gone(grandchild)


async def test_the_process_is_killed_when_its_parent_is_killed(tmp_path):
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from drain.checker.supervisor import DrainSupervisor

        async def main(folder):
            report = lambda state, reason: print(state, supervisor.pid, flush=True)
            command = [sys.executable, "-m", "tests.support.fakes.drain_service", f"{folder}/s", "well"]
            supervisor = DrainSupervisor(
                socket=f"{folder}/s", folder=folder, command=command, on_state=report
            )
            async with supervisor:
                await asyncio.Event().wait()

        asyncio.run(main(Path(sys.argv[1])))
        """
    )
    command = [sys.executable, "-c", program, tmp_path]
    with await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True) as parent:
        reading = asyncio.get_running_loop().run_in_executor(None, lambda: [next(parent.stdout), next(parent.stdout)])
        state, pid = (await asyncio.wait_for(reading, 60))[1].split()
        parent.kill()

    assert state == "ready"
    await gone(int(pid))


async def test_only_the_own_child_is_believed(tmp_path):
    """The process of another cluster listens at the path: its answers are about another ledger."""
    states = []
    command = [sys.executable, "-m", "tests.support.fakes.drain_service", str(tmp_path / "s"), "well"]
    other = await asyncio.create_subprocess_exec(*command)
    supervisor = DrainSupervisor(
        command=["sleep", "600"],
        socket=str(tmp_path / "s"),
        folder=tmp_path,
        on_state=lambda *state: states.append(state),
        times=QUICK,
    )
    try:
        async with supervisor:
            await until(lambda: len(states) > 1)
            refused = f"it is process {other.pid}, and this daemon started {supervisor.pid}"
    finally:
        other.kill()
        await other.wait()
    assert states[1][0] == "degraded"
    assert refused in states[1][1]


async def test_a_folder_that_cannot_be_created_delays_only_the_process(tmp_path):
    supervised = Supervised(tmp_path, "well")
    (tmp_path / "folder").write_text("in the way")
    async with supervised.supervisor:
        assert "cannot be started: File exists" in await supervised.until("degraded")
        (tmp_path / "folder").unlink()
        await supervised.until("ready")
