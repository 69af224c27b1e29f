"""A small `make scale`: every stage with real servers, Spark and generated clients."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from controller.local.embedded import find_mosquitto
from headgate.process.child_process import ChildProcess
from scale.__main__ import DOCUMENT, STAGES
from scale.sizes import scaled
from tests.support.servers.programs import TEST_SECONDS

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here; CI installs it"),
]
OPTIONS = ("--scale", "0.002", "--minutes", "60", "--spark")


async def test_a_small_trial_measures_every_stage_and_loses_nothing(tmp_path: Path) -> None:
    folder, log = tmp_path / "scale", tmp_path / "log"
    program = await ChildProcess.start(
        *(sys.executable, "-m", "scale", *OPTIONS, "--folder", str(folder), "--json"),
        log_path=log,
        output_path=tmp_path / "output",
    )
    async with asyncio.timeout(TEST_SECONDS):
        code = await program.wait()
    assert code == 0, log.read_text()

    document = json.loads((folder / DOCUMENT).read_text())
    assert document == json.loads((tmp_path / "output").read_text())
    assert (document["unfinished"], list(document["stages"])) == ("", list(STAGES))
    stages = document["stages"]
    sizes = scaled(0.002)
    assert stages["topics"]["active_segments"] == sizes.segments + sizes.topics
    assert stages["producers"]["openings_that_failed"] == 0
    assert stages["drains"]["second_round_segments_split_while_they_were_read"] == sizes.topics
    for stage in ("transfer", "kill", "rolling restart"):
        assert stages[stage]["records_that_failed"] == 0, stage
    assert stages["kill"]["longest_wait_on_a_shard_that_changed_its_leader_max_ms"] > 1000, (
        "the wait for a new leader was measured"
    )
    assert stages["restart of all"]["of_these_with_an_exit_code_other_than_0"] == 0
    assert stages["store"]["terms_started"] > sizes.shards
