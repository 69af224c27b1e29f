"""The Debian packages: built, installed on a machine of their own, started by its systemd, removed and purged.

The machine has real servers, and the settings that docs/security.md makes. Building and starting headgate-spark costs
a minute more, so only ``make deb-test`` does it: ``--debian FOLDER`` tests the packages in a folder, both.
"""

import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.local.embedded import zookeeper_classpath
from drain.spark.java import find_java
from tests.deploy.test_units import DEPLOY
from tests.support.documents.markdown import blocks
from tests.support.servers.machine import Machine, booted, missing
from tests.support.servers.programs import TEST_SECONDS

ROOT = DEPLOY.parent
VENV = "/opt/headgate/.venv"
CLIENT = """
cluster = "local"
broker_host = "localhost"
broker_port = 8883
ledger_url = "file:///var/lib/headgate/ledger"
username = "operator"
password_file = "operator-password"
tls = true
ca_file = "/etc/headgate/ca.pem"
"""
SPARK_OF_THIS_ENVIRONMENT = f"""
[Service]
BindReadOnlyPaths={sysconfig.get_path("purelib")}:/srv/spark
Environment=PYTHONPATH=/srv/spark HEADGATE_SPARK_MASTER=local[1] JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1
"""
"""A drop-in for the unit, in place of the package, whose building takes minutes."""
HAND_OVER = """
chgrp headgate /etc/headgate/daemon.key /etc/headgate/http-tokens
chown mosquitto /etc/mosquitto/certs/broker.key /etc/mosquitto/headgate.{passwd,acl}
"""
"""Step 6 of the guide, which is a table of files and owners."""

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(missing() is not None, reason=f"{missing()}; CI runs it as root on Debian"),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is missing; CI runs it on Debian"),
]


@pytest.fixture(scope="module")
def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The packages that are tested: those of ``--debian``, or one that is built from this tree."""
    given = request.config.getoption("--debian")
    folder = Path(given).resolve() if given else tmp_path_factory.mktemp("debian")
    if not given:
        subprocess.run([ROOT / "debian/build", folder, "headgate"], check=True, timeout=TEST_SECONDS)
    found = [*folder.glob("headgate_*.deb"), *folder.glob("headgate-spark_*.deb")]
    assert found, f"{folder} has no package: make deb"
    return found


@pytest.fixture(scope="module")
def machine(packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which nothing is installed yet, with the packages and what ZooKeeper needs."""
    folder = tmp_path_factory.mktemp("machine")
    java = find_java(folder / "java")
    (folder / "root").mkdir()
    jars = Path(zookeeper_classpath().partition(":")[0]).parent
    with booted(folder / "root", [packages[0].parent, java, jars, Path(sysconfig.get_path("purelib"))]) as machine:
        yield machine


@pytest.fixture(scope="module")
def installed(machine: Machine, packages: list[Path]) -> str:
    """What dpkg prints while it installs the packages."""
    return machine.run("dpkg", "--install", *packages)


@pytest.fixture(scope="module")
def configured(machine: Machine, installed: str, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine with ZooKeeper, mosquitto, and the settings that the guide makes."""
    machine.run("headgate", "deploy-files", "/root/deploy")
    machine.shell("mkdir -p /etc/{mosquitto/certs,zookeeper/tls,prometheus} /var/lib/zookeeper /root/ca")
    certificates, passwords, rights, _ = (
        block.text
        for block in blocks(ROOT / "docs/security.md")
        if block.attributes.get("no-run") == "needs a deployment"
    )
    known_user = passwords.replace(
        "mosquitto_passwd /etc/mosquitto/headgate.passwd shop",
        "mosquitto_passwd -b /etc/mosquitto/headgate.passwd operator sesame\n"
        "printf '\\n[[users.operator]]\\nrole = \"administrator\"\\n' >>/etc/headgate/access.toml\n",
    )
    assert known_user != passwords
    machine.shell(f"cd /root/ca; {certificates} {known_user} {rights} {HAND_OVER}")
    machine.shell(f"umask 077; cd /root; echo sesame >operator-password; cat >client.toml <<'END'{CLIENT}END\n")
    machine.shell("cp /root/deploy/mosquitto.conf /etc/mosquitto/mosquitto.conf")
    # Where the machine that runs this has Debian's ZooKeeper, its text in place of a number is there.
    machine.shell("rm -f /var/lib/zookeeper/myid")
    # Only ZooKeeper's distribution contains the metrics provider, Spark's jars do not.
    machine.shell("grep -v ^metricsProvider /root/deploy/zookeeper.cfg >/etc/zookeeper/zoo.cfg")
    java = find_java(tmp_path_factory.mktemp("java")) / "bin/java"
    server = ("-cp", zookeeper_classpath(), "org.apache.zookeeper.server.ZooKeeperServerMain", "/etc/zookeeper/zoo.cfg")
    machine.run("systemd-run", "--unit=zookeeper", java, "-Xmx256m", "-XX:TieredStopAtLevel=1", *server)
    machine.run("systemctl", "start", "mosquitto")
    return machine


@pytest.fixture(scope="module")
def started(configured: Machine) -> Machine:
    """The machine with a daemon that is ready, as its unit says."""
    configured.run("systemctl", "enable", "--now", "headgate")
    return configured


def headgate(machine: Machine, *arguments: str, text: str | None = None) -> str:
    """Run a command of a client, as the user ``operator`` of the broker."""
    return machine.run("headgate", "--config", "/root/client.toml", *arguments, text=text)


def get(machine: Machine, path: str) -> str:
    """Return the body of an answer of the daemon, with the token that the guide makes."""
    code = (
        "import ssl, sys, urllib.request as http\n"
        "token = open('/etc/prometheus/headgate-token').read().strip()\n"
        "request = http.Request('https://localhost:9464' + sys.argv[1], headers={'Authorization': 'Bearer ' + token})\n"
        "tls = ssl.create_default_context(cafile='/etc/headgate/ca.pem')\n"
        "print(http.urlopen(request, context=tls).read().decode())"
    )
    return machine.run(f"{VENV}/bin/python", "-c", code, path)


def test_installation_says_what_to_do_and_starts_nothing(machine: Machine, installed: str) -> None:
    assert "not started" in installed
    assert "systemctl enable --now headgate" in installed
    for path in re.findall(r"/(?:etc|usr)/[\w/.-]*\w", installed.partition("not started")[2]):
        assert machine.exists(path), path
    assert "inactive\n" == machine.run("systemctl", "is-active", "headgate", code=3)
    assert "disabled\n" == machine.run("systemctl", "is-enabled", "headgate", code=1)


def test_secrets_and_settings_are_closed_to_other_users(machine: Machine, installed: str) -> None:
    listing = machine.run("stat", "--format=%A %U:%G %n", "/etc/headgate", "/etc/headgate/mqtt-password")

    assert "drwxr-x--- root:headgate /etc/headgate\n-rw------- root:root /etc/headgate/mqtt-password\n" == listing


def test_every_file_belongs_to_root_and_names_no_folder_of_the_build(machine: Machine, installed: str) -> None:
    strangers = machine.run(
        "find", "/opt/headgate", "(", "!", "-user", "root", "-o", "-perm", "/022", ")", "!", "-type", "l"
    )
    assert "" == strangers
    launcher = machine.run("head", "--lines=1", f"{VENV}/bin/headgate")
    assert f"#!{VENV}/bin/python\n" == launcher
    code = "import sys, controller, headgate\nprint(sys.prefix, controller.__file__, controller.__cached__)\n"
    code += "print(headgate.__loader__.get_code('headgate').co_filename)"
    package = machine.run("sh", "-c", f"echo {VENV}/lib/python3.*/site-packages/").strip()
    prefix, source, cached, compiled = machine.run(f"{VENV}/bin/python", "-I", "-c", code).split()
    assert (VENV, f"{package}controller/__init__.py") == (prefix, source)
    assert machine.exists(cached)
    assert f"{package}headgate/__init__.py" == compiled


def test_no_user_has_rights_until_one_is_added(packages: list[Path], tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", packages[0], tmp_path], check=True, timeout=60)

    assert (tmp_path / "etc/headgate/access.toml").read_text().endswith("\n[users]\n")
    assert (tmp_path / "etc/headgate/headgate.toml").read_text() == (DEPLOY / "headgate.toml").read_text()


def test_systemd_accepts_the_installed_units(machine: Machine, installed: str) -> None:
    units = machine.shell("cd /usr/lib/systemd/system; ls headgate*.service").split()

    assert "" == machine.run("systemd-analyze", "verify", *units)


def test_the_daemon_starts_with_the_settings_of_the_guide_and_serves_clients(started: Machine) -> None:
    assert "active\n" == started.run("systemctl", "is-active", "headgate")
    assert "enabled\n" == started.run("systemctl", "is-enabled", "headgate")
    started.until("journalctl", "--no-pager", "--unit=headgate", "--output=cat", shows="term.started")

    headgate(started, "topic", "create", "orders")
    record = json.dumps({"id": "a", "n": 1}) + "\n"
    assert "stored 1, failed 0" in headgate(started, "produce", "orders", "--key-field", "id", text=record)
    assert "orders" in headgate(started, "topic", "list")
    assert "leads 4 of 4 shards" in get(started, "/readyz")


def test_the_daemon_runs_as_its_user_and_reloads(started: Machine) -> None:
    main = started.run("systemctl", "show", "--property=MainPID", "--value", "headgate").strip()
    assert "headgate\n" == started.run("stat", "--format=%U", f"/proc/{main}")

    started.run("systemctl", "reload", "headgate")
    assert main == started.run("systemctl", "show", "--property=MainPID", "--value", "headgate").strip()


@pytest.mark.timeout(2 * TEST_SECONDS)  # Spark starts
def test_the_drain_service_counts_for_the_daemon_in_its_sandbox(started: Machine, packages: list[Path]) -> None:
    unit = "headgate-backlog.service"
    if len(packages) == 1:
        assert "degraded" in get(started, "/readyz")
        assert "LoadState=not-found\n" == started.run("systemctl", "show", "--property=LoadState", unit)
        started.run("cp", f"/root/deploy/{unit}", "/etc/systemd/system")
        started.write(f"/etc/systemd/system/{unit}.d/spark.conf", SPARK_OF_THIS_ENVIRONMENT)
        started.run("systemctl", "daemon-reload")
    started.run("systemctl", "enable", "--now", unit)
    log = ("journalctl", "--no-pager", "--unit=headgate", "--output=cat")
    started.until(*log, shows='"state":"ready"', seconds=TEST_SECONDS)
    assert "degraded" not in get(started, "/readyz")
    started.until("headgate", "doctor", "--daemon-config", "/etc/headgate/headgate.toml", shows="0 problems")
    if len(packages) == 1:
        started.run("systemctl", "disable", "--now", unit)
        started.shell(f"rm -r /etc/systemd/system/{unit}*; systemctl daemon-reload")  # the daemon's unit wants it


def test_a_further_daemon_on_the_machine_takes_shards_over(started: Machine) -> None:
    started.shell("sed 's/^port = 9464/port = 9465/' /etc/headgate/headgate.toml >/etc/headgate/second.toml")
    started.run("systemctl", "enable", "--now", "headgate@second")
    started.until("journalctl", "--no-pager", "--unit=headgate@second", "--output=cat", shows="term.started")
    assert "-second " in (listed := headgate(started, "daemon", "list")), "the name is the unit's"
    assert "unreachable" not in listed, "daemons verify the names in each other's certificates"


def test_an_upgrade_restarts_daemons_that_run_and_keeps_settings(started: Machine, packages: list[Path]) -> None:
    before = started.run("systemctl", "show", "--property=MainPID", "--value", "headgate")
    rights = started.run("cat", "/etc/headgate/access.toml")
    started.run("sed", "-i", "s/^shards = 4/shards = 0/", "/etc/headgate/second.toml")

    printed = started.run("dpkg", "--install", packages[0])
    assert "not started" not in printed
    assert "headgate@second.service is not ready" in printed
    assert "active\n" == started.run("systemctl", "is-active", "headgate")
    assert before != started.run("systemctl", "show", "--property=MainPID", "--value", "headgate")
    assert rights == started.run("cat", "/etc/headgate/access.toml")


def test_removal_keeps_data_and_settings_and_purge_says_where_data_is(started: Machine) -> None:
    chunks = set(started.run("find", "/var/lib/headgate/ledger", "-name", "*.parquet").split())
    assert chunks
    names = started.run("dpkg-query", "--show", "--showformat=${Package}\n", "headgate*").split()

    assert "Data stays in /var/lib/headgate" in started.run("dpkg", "--remove", *names)
    assert not started.exists("/usr/bin/headgate")
    assert not started.exists("/opt/headgate")
    assert "" == started.run("pgrep", "--uid", "headgate", code=1)
    assert started.exists("/etc/headgate/daemon.key")

    assert "Data stays in /var/lib/headgate" in started.run("dpkg", "--purge", *names)
    assert not started.exists("/etc/headgate")
    assert "" == started.shell("find /etc/systemd/system/multi-user.target.wants -name 'headgate*'")
    assert chunks <= set(started.run("find", "/var/lib/headgate/ledger", "-name", "*.parquet").split())
