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
    for folder in (etc / "headgate", etc / "zookeeper" / "conf"):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "headgate.toml", etc / "headgate")
    shutil.copy(ROOT / "deploy" / "zookeeper.cfg", etc / "zookeeper" / "conf" / "zoo.cfg")
    script = str(ROOT / "examples" / "three-machines" / "configure.sh")

    def configure(number: str, *names: str) -> tuple[int, str]:
        command = "sh", script, number, "s3://shop/headgate", "mqtt.example.org", *names
        env = {**os.environ, "ETC": str(etc), "VAR": str(tmp_path)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.removeprefix(f"{script}: ")

    code, error = configure("2", *hosts)
    assert (2, str(tmp_path / "lib" / "zookeeper")) == (code, error.partition(" ")[0]), "it changes no files"
    assert "example.org" not in (etc / "headgate" / "headgate.toml").read_text().partition("[http]")[0]
    (tmp_path / "lib" / "zookeeper").mkdir(parents=True)
    assert (2, "the number is 1, 2 or 3, not 0\n") == configure("0", *hosts), "machines count from 1"
    assert 2 == configure("1", *hosts[:2])[0]
    counts = etc / "headgate" / "backlog.env"
    counts.write_text("HEADGATE_LEDGER=s3://old/headgate\nHEADGATE_SPARK_MASTER=local[1]\n")
    assert [(0, "")] * 2 == [configure("2", *hosts), configure("2", *hosts)]
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
    assert counts.read_text() == "HEADGATE_SPARK_MASTER=local[1]\nHEADGATE_LEDGER=s3://shop/headgate\n"
    assert "EnvironmentFile=-/etc/headgate/backlog.env" in (ROOT / "deploy" / "headgate-backlog.service").read_text()
