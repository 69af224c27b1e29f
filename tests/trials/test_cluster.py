"""A local cluster before anything is started: ports, configuration files, and what its processes get."""

from __future__ import annotations

from pathlib import Path

from controller.settings.load import HttpSettings
from headgate import load_client_config
from trials.cluster import LocalCluster


async def test_with_tls_every_client_and_daemon_has_a_user(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, tls=True, http=HttpSettings(port=0)) as cluster:
        settings = cluster.settings("one")
        found = load_client_config(cluster.client_config_path)

    assert (found.tls, found.username) == (True, "administrator")
    assert (settings.broker.username, settings.broker.tls) == ("headgate", True)
    assert settings.http.port == 0, "other sections than those of the cluster keep their secrets"
    assert settings.http.certificate_file
