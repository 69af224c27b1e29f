"""SIGHUP to a running daemon applies what it can without a new leader term, and names the rest."""

import signal
from pathlib import Path

import pytest

from controller.settings.sections import ClusterSettings, LogSettings, ScalingSettings
from tests.support.servers.cluster import Cluster
from tests.support.servers.programs import TEST_SECONDS, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]


async def test_a_reload_applies_some_settings_names_those_that_need_a_restart_and_refuses_mistakes(tmp_path: Path):
    async with Cluster(tmp_path, session_seconds=30) as cluster:
        daemon = await cluster.start_leader()
        leads = await daemon.leads()
        other = ClusterSettings(name=cluster.name, shards=3)
        cluster.reload(
            daemon.settings.replace(
                cluster=other, log=LogSettings(format="text"), scaling=ScalingSettings(max_segments=9)
            )
        )
        await wait_until(lambda: daemon.log_entries("log.format"), "the log names what needs a restart")
        (tmp_path / "only.toml").write_text("[ingest]\nqueue_bites = true\n")
        daemon.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: daemon.log_entries("settings.invalid"), "the log names the error")
        assert leads == await daemon.leads()
    assert "queue_bites" in daemon.log_entries("settings.invalid")[0]["error"]
    assert ["cluster.shards", "log.format"] == [
        each["setting"] for each in daemon.log_entries("settings.needs_restart")
    ]
    assert ["scaling.max_segments"] == daemon.log_entries("settings.reloaded")[-1]["applied"]
