"""The library with the faults of disk and clock, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.fault_shim import FAULTS, FaultShim, ShimFault, compile_shim, find_compiler
from headgate.errors import HeadgateError

pytestmark = pytest.mark.skipif(
    find_compiler() is None, reason="no C compiler is installed; python -m chaos leaves these faults out"
)

PROGRAM = """
import json, os, sys, time
folder = sys.argv[1]
found = {"now": time.time(), "seconds": int(time.time())}
handle = os.open(folder, os.O_WRONLY | os.O_TMPFILE)
began = time.monotonic()
def attempt(name, call):
    try:
        found[name] = call()
    except OSError as error:
        found[name] = error.strerror
attempt("first write", lambda: os.write(handle, b"x" * 1000))
attempt("second write", lambda: os.write(handle, b"x" * 1000))
attempt("file sync", lambda: os.fsync(handle))
attempt("folder sync", lambda: os.fsync(os.open(folder, os.O_RDONLY)))
found["took"] = time.monotonic() - began
os.write(1, json.dumps(found).encode())
"""
HEALTHY = {"first write": 1000, "second write": 1000, "file sync": None, "folder sync": None}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = find_compiler()
    assert compiler is not None
    return compile_shim(compiler, tmp_path_factory.mktemp("shim"))


def play(shim: FaultShim, folder: Path) -> dict[str, Any]:
    """Run the program with the shim; return what it found, with its clock relative to this one."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, **shim.environ},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("fault", "value", "changed"),
    [
        pytest.param("disk_full", 1, {"first write": 500, "second write": "No space left on device"}, id="full disk"),
        pytest.param("file_sync_fails", 1, {"file sync": "Input/output error"}, id="failing fsync"),
        pytest.param("folder_sync_fails", 1, {"folder sync": "Input/output error"}, id="failing fsync of a folder"),
        pytest.param("sync_delay_ms", 300, {}, id="slow disk"),
        pytest.param("clock_offset_ms", -3_600_250, {}, id="clock"),
    ],
)
def test_a_fault_changes_what_it_names_and_nothing_else(
    fault: ShimFault, value: int, changed: dict[str, Any], library: Path, tmp_path: Path
) -> None:
    shim = FaultShim(library, tmp_path / "control")
    before = play(shim, tmp_path)
    shim.set(fault, value)
    during = play(shim, tmp_path)
    shim.clear()
    after = play(shim, tmp_path)

    assert HEALTHY | changed == {name: during[name] for name in HEALTHY}
    assert [HEALTHY, HEALTHY] == [{name: found[name] for name in HEALTHY} for found in (before, after)]
    assert (fault == "sync_delay_ms") == (during["took"] >= 0.3)
    shift = during["now"] - before["now"]
    assert -3601 < shift < -3540 if fault == "clock_offset_ms" else 0 <= shift < 60
    assert abs(during["now"] - during["seconds"]) < 2
    assert after["now"] >= before["now"]
    assert {each for each in FAULTS if shim.effects(each)} == {fault}


def test_a_compiler_that_fails_is_reported_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(HeadgateError, match="cannot compile"):
        compile_shim("false", tmp_path)
