"""A machine with a systemd of its own: namespaces on this one, with a copy-on-write view of its files.

For tests of what is installed by root and started by systemd. It has loopback only, its own processes and its own
ports, and everything written in it is gone when it ends. Needs root on Linux with overlayfs and systemd; it needs no
container engine and no image. Folders of other file systems, and below /tmp, are visible only if they are ``shared``.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BOOT: Final = Path(__file__).with_name("boot_machine.sh")
NAMESPACES: Final = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
BOOT_SECONDS: Final = 60.0
COMMAND_SECONDS: Final = 240.0


def missing() -> str | None:
    """Return what this machine lacks to run another one; None if it lacks nothing."""
    if os.geteuid() != 0:
        return "namespaces with a systemd of their own need root"
    programs = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if programs or not Path("/usr/lib/systemd/systemd").exists():
        return f"not installed: {', '.join(programs) or 'systemd'}"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlayfs"
    return None


class Machine:
    """A machine that has booted; see `booted`."""

    def __init__(self, init: int) -> None:
        """``init`` is the number of its systemd, seen from here."""
        self._init = init

    def run(self, *command: str | Path, text: str | None = None, code: int | None = 0) -> str:
        """Run a command as root, with ``text`` as its input. Return its output and errors.

        Fails the test if it does not end with ``code``; None allows every code.
        """
        enter = ("nsenter", f"--target={self._init}", *NAMESPACES, "--root", "--wd", "--", *command)
        done = subprocess.run(
            enter,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"},
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert code in {None, done.returncode}, f"{command}: {done.returncode}\n{done.stdout}\n{self.journal()}"
        return done.stdout

    def shell(self, script: str) -> str:
        """Run a script that must succeed. Return its output and errors."""
        return self.run("bash", "-euo", "pipefail", text=script)

    def write(self, path: str, content: str) -> None:
        """Write a file, and the folders above it."""
        self.run("install", "-D", "-m", "644", "/dev/stdin", path, text=content)

    def exists(self, path: str) -> bool:
        return self.run("sh", "-c", f"test -e {path} && echo yes || echo no") == "yes\n"

    def until(self, *command: str, shows: str, seconds: float = 120.0) -> str:
        """Return the output of a command as soon as it contains ``shows``; fail the test after ``seconds``."""
        deadline = time.monotonic() + seconds
        while shows not in (output := self.run(*command, code=None)):
            assert time.monotonic() < deadline, f"not within {seconds} s: {shows}\n{output}\n{self.journal()}"
            time.sleep(0.2)
        return output

    def journal(self) -> str:
        """Return the last lines that its services logged."""
        return self.run("journalctl", "--no-pager", "--lines=100", "--output=cat", code=None)


@contextmanager
def booted(folder: Path, shared: Sequence[Path]) -> Iterator[Machine]:
    """Boot a machine, and end it with all its processes. ``folder`` is empty afterwards."""
    group = _control_groups() / f"headgate-test-{os.getpid()}"
    group.mkdir()
    script = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
    boot = ("bash", BOOT, folder, *(path.resolve() for path in shared))
    with (
        (folder.parent / f"{folder.name}.log").open("wb+") as log,
        subprocess.Popen(
            ["bash", "-c", script, "boot", group, "unshare", *NAMESPACES, "--fork", "--kill-child", *boot],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            machine = Machine(_init(process, Path(log.name)))
            _wait_for_systemd(machine, process, Path(log.name))
            yield machine
        finally:
            # The end of its first process ends all others.
            process.kill()
            process.wait()
            _remove(group)


def _control_groups() -> Path:
    """Return where the unified hierarchy of control groups is mounted."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")


def _init(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the child of unshare, which becomes systemd."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + BOOT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        names = [(int(pid), Path(f"/proc/{pid}/comm").read_text().strip()) for pid in children.read_text().split()]
        if names and names[0][1] == "systemd":
            return names[0][0]
        time.sleep(0.02)
    raise AssertionError(f"no systemd was started: {log.read_text()}")


def _wait_for_systemd(machine: Machine, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while machine.run("systemctl", "is-system-running", code=None).strip() not in {"running", "degraded"}:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text() + machine.run("systemctl", "list-jobs", code=None)
        time.sleep(0.1)


def _remove(group: Path) -> None:
    """Remove a control group and those below it, once the kernel has ended their processes."""
    deadline = time.monotonic() + BOOT_SECONDS
    while "populated 1" in (group / "cgroup.events").read_text():
        assert time.monotonic() < deadline, f"processes outlived their machine: {group}"
        time.sleep(0.02)
    for path in sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True):
        path.rmdir()
    group.rmdir()
