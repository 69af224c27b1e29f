"""Faults of the disk and the clock of one process, through a library that is loaded into it (fault_shim.c).

The library is compiled with the C compiler of the machine when a run begins. A control file of each process says which
faults apply to it, and counts how often each of them had an effect. So a fault needs no rights of root, and meets one
daemon only.
"""

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from headgate.errors import HeadgateError

SOURCE: Final = Path(__file__).with_name("fault_shim.c")
COMPILE_SECONDS: Final = 60.0
ShimFault = Literal["clock_offset_ms", "sync_delay_ms", "disk_full", "file_sync_fails", "folder_sync_fails"]
FAULTS: Final[tuple[ShimFault, ...]] = (
    "clock_offset_ms",
    "sync_delay_ms",
    "disk_full",
    "file_sync_fails",
    "folder_sync_fails",
)
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


class FaultShim:
    """The faults of one process: set here, performed by the library in that process."""

    def __init__(self, library: Path, control: Path) -> None:
        """``control`` is created; the process finds it through `environ`."""
        self._library = library
        self._control = control
        control.write_bytes(bytes(_FILE_BYTES))
        handle = os.open(control, os.O_RDWR)
        try:
            self._map = mmap.mmap(handle, _FILE_BYTES)
        finally:
            os.close(handle)

    @property
    def environ(self) -> Mapping[str, str]:
        """What the process needs in its environment."""
        return {"LD_PRELOAD": str(self._library), "HEADGATE_FAULTS": str(self._control)}

    def set(self, fault: ShimFault, value: int = 1) -> None:
        """Switch ``fault`` on, or off with 0."""
        struct.pack_into("=q", self._map, FAULTS.index(fault) * _FIELD_BYTES, value)

    def clear(self) -> None:
        """Switch all faults off."""
        for fault in FAULTS:
            self.set(fault, 0)

    def effects(self, fault: ShimFault) -> int:
        """Return how often ``fault`` had an effect so far."""
        found: int = struct.unpack_from("=q", self._map, (len(FAULTS) + FAULTS.index(fault)) * _FIELD_BYTES)[0]
        return found
