"""examples/three-machines: its script, on copies of the files that the Debian package and deploy/ have."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from tests.support.source_folders import ROOT


def test_the_script_of_three_machines_writes_settings_that_a_daemon_and_zookeeper_can_use(tmp_path: Path) -> None:
    etc, hosts = tmp_path / "etc", ["one.example.org", "two.example.org", "three.example.org"]
    for folder in (etc / "headgate", etc / "zookeeper" / "conf", tmp_path / "lib" / "zookeeper"):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "headgate.toml", etc / "headgate")
    shutil.copy(ROOT / "deploy" / "zookeeper.cfg", etc / "zookeeper" / "conf" / "zoo.cfg")
    script = str(ROOT / "examples" / "three-machines" / "configure.sh")
    for number in ("2", "2", "0"):  # machines count from 1
        command = "sh", script, number, "s3://shop/headgate", "mqtt.example.org", *hosts
        done = subprocess.run(command, env={**os.environ, "ETC": str(etc), "VAR": str(tmp_path)}, check=number != "0")
        assert (2 if number == "0" else 0) == done.returncode
    settings = tomllib.loads((etc / "headgate" / "headgate.toml").read_text())
    zookeeper = dict(re.findall(r"^([\w.]+)=(.*)$", (etc / "zookeeper" / "conf" / "zoo.cfg").read_text(), re.MULTILINE))

    assert ",".join(f"{host}:{zookeeper['secureClientPort']}" for host in hosts) == settings["zookeeper"]["hosts"]
    assert ("mqtt.example.org", "s3://shop/headgate") == (settings["broker"]["host"], settings["ledger"]["url"])
    assert {"two.example.org"} == {
        settings["http"]["host"],
        settings["http"]["advertised_host"],
        zookeeper["secureClientPortAddress"],
    }
    assert [f"{host}:2888:3888" for host in hosts] == [zookeeper[f"server.{n}"] for n in (1, 2, 3)]
    assert "true" == zookeeper["sslQuorum"]
    assert (tmp_path / "lib" / "zookeeper" / "myid").read_text() == "2\n"
    assert (etc / "headgate" / "backlog.env").read_text() == "HEADGATE_LEDGER=s3://shop/headgate\n"
    assert "EnvironmentFile=-/etc/headgate/backlog.env" in (ROOT / "deploy" / "headgate-backlog.service").read_text()
