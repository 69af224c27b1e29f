"""A short run of `make chaos` with fixed faults, on an ensemble of ZooKeeper servers and three daemons."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from chaos.fault_shim import find_compiler
from controller.local.embedded import find_mosquitto
from headgate.process.child_process import ChildProcess
from tests.support.servers.programs import TEST_SECONDS

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here; CI installs it"),
]

FAULTS = ("leader-killed", "broker-one-way-in", "certificate-expired", "fsync-of-folder-fails")
"""A process, the network, a certificate and a disk; the others are in the ten minutes of `make chaos`."""
OPTIONS = ("--faults", ",".join(FAULTS), "--fault-seconds=5", "--rest-seconds=1", "--rate=60", "--no-spark", "--tls")


async def test_a_short_run_keeps_every_invariant(tmp_path: Path) -> None:
    program = await ChildProcess.start(
        *(sys.executable, "-m", "chaos", *OPTIONS, "--seed", "1", "--folder", str(tmp_path / "chaos"), "--json"),
        log_path=tmp_path / "log",
        output_path=tmp_path / "report.json",
    )
    async with asyncio.timeout(TEST_SECONDS):
        code = await program.wait()
    assert code == 0, (tmp_path / "log").read_text()

    report = json.loads((tmp_path / "report.json").read_text())
    played = [name for name in FAULTS if find_compiler() is not None or name != "fsync-of-folder-fails"]
    assert played == [fault["name"] for fault in report["faults"]]
    assert ({}, []) == (report["violation_counts"], report["restarts"])
    assert all(counts["sent"] == counts["committed"] == counts["stored"] > 0 for counts in report["records"].values())
    assert report["terms"]["orders"] > 1, "a killed leader has a successor"
    assert report["faults"][0]["longest_outage_seconds"] > 0.5, "the fault was noticed"
