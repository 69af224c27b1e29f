"""Faults of the disk and the clock of one process, through a library that is loaded into it (fault_shim.c).

The library is compiled with the C compiler of the machine when a run begins. A control file of each process says which
faults apply to it, and counts how often each of them had an effect. So a fault needs no rights of root, and meets one
daemon only. A journal that all processes share tells what a power failure would lose at any moment.
"""

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_args

from headgate.errors import HeadgateError

SOURCE: Final = Path(__file__).with_name("fault_shim.c")
COMPILE_SECONDS: Final = 60.0
ShimFault = Literal["clock_offset_ms", "sync_delay_ms", "disk_full", "file_sync_fails", "folder_sync_fails"]
FAULTS: Final[tuple[ShimFault, ...]] = get_args(ShimFault)
_FIELD_BYTES: Final = 8
_FILE_BYTES: Final = 2 * len(FAULTS) * _FIELD_BYTES


def find_compiler() -> str | None:
    """Return the path of a C compiler; None if the machine has none."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def compile_shim(compiler: str, folder: Path) -> Path:
    """Compile the library into ``folder``; return its path. Raises HeadgateError with the compiler's message."""
    target = folder / "fault_shim.so"
    command = [compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if done.returncode != 0:
        raise HeadgateError(f"cannot compile {SOURCE}: {done.stderr.strip() or done.returncode}")
    return target


class SyncJournal:
    """What the processes that load the library have linked and synced, in order."""

    def __init__(self, library: Path, path: Path) -> None:
        """``path`` is created; the processes find it through `environ`."""
        self._path = path
        path.touch()
        self.environ: Mapping[str, str] = {"LD_PRELOAD": str(library), "HEADGATE_JOURNAL": str(path)}

    def unsynced(self) -> tuple[set[Path], set[Path]]:
        """Return the files whose names are not durable now, and those whose data is not."""
        names: dict[str, set[Path]] = {}
        data: set[Path] = set()
        for line in self._path.read_text().splitlines():
            sign, path = line.split(" ", 1)
            if sign == "=":
                names.pop(path, None)
                continue
            names.setdefault(os.path.dirname(path), set()).add(Path(path))  # noqa: PTH120 - pathlib is slow
            if sign == "~":
                data.add(Path(path))
        return set().union(*names.values()), data


class FaultShim:
    """The faults of one process: set here, performed by the library in that process."""

    def __init__(self, control: Path) -> None:
        """``control`` is created; the process finds it through `environ`."""
        self.environ: Mapping[str, str] = {"HEADGATE_FAULTS": str(control)}
        control.write_bytes(bytes(_FILE_BYTES))
        handle = os.open(control, os.O_RDWR)
        try:
            self._map = mmap.mmap(handle, _FILE_BYTES)
        finally:
            os.close(handle)

    def set(self, fault: ShimFault, value: int = 1) -> None:
        """Switch ``fault`` on, or off with 0."""
        struct.pack_into("=q", self._map, FAULTS.index(fault) * _FIELD_BYTES, value)

    def clear(self) -> None:
        for fault in FAULTS:
            self.set(fault, 0)

    def effects(self, fault: ShimFault) -> int:
        """Return how often ``fault`` had an effect so far."""
        found: int = struct.unpack_from("=q", self._map, (len(FAULTS) + FAULTS.index(fault)) * _FIELD_BYTES)[0]
        return found
