"""A local cluster before anything is started: ports, configuration files, and what its processes get."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from controller.local.reserved_port import ReservedPort, port_is_free
from controller.settings.load import DrainSettings, HttpSettings, InstanceSettings, load_settings
from headgate import load_client_config
from trials.cluster import LocalCluster


async def test_ports_are_reserved_before_anything_runs_and_released_at_the_end(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "made") as cluster:
        ports = {cluster.broker.port, cluster.zookeeper.port, cluster.settings("one").http.port}
        others = [ReservedPort() for _ in range(50)]
        taken = {port.number for port in others}
        for port in others:
            port.close()

        assert len(ports) == 3
        assert not ports & taken
        assert cluster.settings("one") == cluster.settings("one"), "a daemon comes back on its port"
    assert all(map(port_is_free, ports))


async def test_clients_and_daemons_read_their_files(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, name="made", shards=3, http=HttpSettings(port=0)) as cluster:
        settings = cluster.settings("one")

        found = load_client_config(cluster.client_config_path)
        assert cluster.client_config() == msgspec.structs.replace(found, file=None)
        read = load_settings(cluster.write_settings(settings))
        assert (read.cluster, read.http, read.ledger) == (settings.cluster, HttpSettings(port=0), settings.ledger)
        assert "one" == read.instance.name


async def test_programs_are_stopped_killed_frozen_and_missed_by_name(tmp_path: Path) -> None:
    sleep = ("-c", "import time; print('up'); time.sleep(600)")
    async with LocalCluster(tmp_path) as cluster:
        await cluster.start_program("first", *sleep)
        second = await cluster.start_program("second", *sleep)
        third = await cluster.start_program("third", "-c", "print('said')")
        await third.wait()
        cluster.freeze("second")

        assert ["third"] == cluster.exited_programs()
        assert "said\n" == cluster.log_path("third").read_text()
        assert -15 == await cluster.stop("first")
        await cluster.kill("third")
        assert ["second"] == list(cluster.programs)
    assert -9 == second.returncode, "also when it is frozen"


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
async def test_the_broker_is_the_one_asked_for(tmp_path: Path, kind: str) -> None:
    async with LocalCluster(tmp_path, broker_kind=kind) as cluster:
        assert kind == cluster.broker.kind


async def test_any_section_can_be_replaced(tmp_path: Path) -> None:
    sections = {"drain": DrainSettings(socket="/other"), "instance": InstanceSettings(name="other")}
    async with LocalCluster(tmp_path, **sections) as cluster:
        settings = cluster.settings("one")

    assert (settings.drain, settings.instance) == (sections["drain"], sections["instance"])


async def test_with_tls_every_client_and_daemon_has_a_user(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, tls=True, http=HttpSettings(port=0)) as cluster:
        settings = cluster.settings("one")
        found = load_client_config(cluster.client_config_path)

    assert (found.tls, found.username) == (True, "administrator")
    assert (settings.broker.username, settings.broker.tls) == ("headgate", True)
    assert settings.http.port == 0, "other sections than those of the cluster keep their secrets"
    assert settings.http.certificate_file
