"""The systemd units and their configuration files."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from controller.leader.shard_spreader import EVACUATION_SECONDS
from controller.leader.term import HANDOVER_TIMEOUT_SECONDS
from controller.process.liveness import START_EXTENSION_SECONDS
from controller.settings.load import load_settings
from drain.service.service import STOP_SECONDS
from tests.support.documents.program_help import help_of
from tests.support.samples.secret_files import write_secret
from web.listener import CLOSE_SECONDS

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("headgate.service", "headgate-backlog.service", "headgate-backlog-once.service")
FURTHER = "headgate@.service"
EXPORT = "headgate-export@.service"
ZOOKEEPER = "zookeeper.service"
STORE = "-/etc/headgate/store.env"
TIMER = "headgate-backlog-once.timer"
HIGHEST_EXPOSURE = 1.5
LONGEST_SILENCE_SECONDS = 86.0
"""Measured between two ticks of a start on an overloaded machine."""

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is missing; it comes with Debian's package systemd, and CI installs it",
)


def directives(unit):
    """Return the directives of a unit as name → values, in order."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / unit).read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def installed(tmp_path):
    """Copy the units with another program, because headgate is not installed in /opt."""
    for unit in (*UNITS, FURTHER, EXPORT, ZOOKEEPER):
        text = (DEPLOY / unit).read_text()
        text, count = re.subn(r"/opt/headgate/\.venv/bin/\w+|/usr/bin/java", "/bin/true", text)
        assert count, "the unit starts neither headgate nor ZooKeeper"
        (tmp_path / unit).write_text(text)
    shutil.copy(DEPLOY / TIMER, tmp_path)
    return tmp_path


def analyze(folder, *arguments):
    return subprocess.run(
        ["systemd-analyze", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd_analyze
def test_systemd_accepts_the_units_without_warnings(installed):
    """systemd only warns about a misspelled directive, and ignores it."""
    result = analyze(installed, "verify", *(f"./{unit}" for unit in (*UNITS, FURTHER, EXPORT, ZOOKEEPER, TIMER)))

    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd_analyze
@pytest.mark.parametrize("unit", [*UNITS, FURTHER, EXPORT, ZOOKEEPER])
def test_the_units_are_hardened(installed, unit):
    """systemd's exposure score, from 0 (best) to 10."""
    result = analyze(installed, "security", "--offline=yes", "--no-pager", f"./{unit}")
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", result.stdout)

    assert score, result.stdout + result.stderr
    assert float(score[1]) <= HIGHEST_EXPOSURE


def test_a_further_daemon_runs_as_the_first_one_with_settings_of_its_own():
    daemon, further = directives(UNITS[0]), directives(FURTHER)
    own = {name: [each.replace("headgate.toml", "%i.toml") for each in values] for name, values in daemon.items()}
    names = {"Description": ["headgate daemon %i"], "Environment": ["HEADGATE_INSTANCE=%H-%i"]}
    assert own | names == further


def test_time_limits_exceed_the_times_of_the_program():
    daemon, backlog = (directives(unit) for unit in UNITS[:2])
    settings = load_settings(DEPLOY / "headgate.toml")
    locks, broker, child = settings.zookeeper.session_timeout_seconds, 2, 5
    longest_stop = EVACUATION_SECONDS + (
        HANDOVER_TIMEOUT_SECONDS + settings.ingest.write_timeout_seconds + locks + broker + CLOSE_SECONDS + child
    )

    assert float(daemon["TimeoutStopSec"][0]) >= longest_stop
    assert float(backlog["TimeoutStopSec"][0]) >= STOP_SECONDS + 1
    assert float(daemon["TimeoutStartSec"][0]) == START_EXTENSION_SECONDS >= 3 * LONGEST_SILENCE_SECONDS


def test_the_example_settings_match_the_units():
    """Socket and ledger are equal, and the daemon does not spawn the drain service."""
    settings = load_settings(DEPLOY / "headgate.toml")
    daemon, backlog = (directives(unit) for unit in UNITS[:2])
    environment = dict(value.split("=", 1) for value in backlog["Environment"])

    assert not settings.drain.spawn
    assert environment["HEADGATE_DRAIN_SOCKET"] == settings.drain.socket
    assert environment["HEADGATE_LEDGER"] == settings.ledger.url
    assert settings.drain.socket == f"/run/{backlog['RuntimeDirectory'][0]}/drain.sock"
    assert f"/var/lib/{backlog['StateDirectory'][0].split()[0]}" in backlog["ExecStart"][0]
    for unit in UNITS:
        assert directives(unit)["EnvironmentFile"][0] == STORE, "one file for all that use the object store"
    for unit in UNITS[1:]:
        assert "headgate/ledger" in directives(unit)["StateDirectory"][0].split(), "results are written to the ledger"
    assert daemon["StateDirectory"] == ["headgate"], "the ledger's folder, read-only otherwise"


def test_the_shipped_settings_poll_a_scheduled_job_once_its_line_replaces_the_socket(tmp_path):
    shipped = (DEPLOY / "headgate.toml").read_text()
    edited = re.sub(r"^socket = .*\n", "", shipped, flags=re.MULTILINE).replace("# results = ", "results = ")
    (tmp_path / "headgate.toml").write_text(edited)
    shutil.copy(DEPLOY / "access.toml", tmp_path)
    once = dict(value.split("=", 1) for value in directives("headgate-backlog-once.service")["Environment"])

    assert load_settings(tmp_path / "headgate.toml").drain.results == once["HEADGATE_RESULTS"]


def test_the_password_files_of_the_example_are_the_credentials(tmp_path):
    """systemd provides them, and tmpfiles.conf creates their sources."""
    loaded = dict(value.split(":") for value in directives(UNITS[0])["LoadCredential"])
    for credential in loaded:
        write_secret(tmp_path / credential, f"{credential}: sesame\n".encode())

    settings = load_settings(DEPLOY / "headgate.toml", credentials=tmp_path)
    assert settings.broker.password() == "mqtt-password: sesame"
    assert settings.zookeeper.password() == "zookeeper-password: sesame"
    made = [line.split()[1] for line in (DEPLOY / "tmpfiles.conf").read_text().splitlines() if line.startswith("f ")]
    assert made == [*loaded.values(), "/etc/headgate/http-tokens"], "neither starts without its file"


@pytest.mark.parametrize(("unit", "command"), [(UNITS[1], ("drain", "serve")), (EXPORT, ("export",))])
def test_a_command_has_the_options_that_its_unit_uses(unit, command):
    used = re.findall(r"--[a-z-]+", directives(unit)["ExecStart"][0])
    help_text = help_of(("-m", "headgate"), command)

    assert used
    assert [option for option in used if f"{option} " not in help_text] == []


def test_the_daemon_has_the_commands_and_options_that_its_unit_uses():
    lines = directives(UNITS[0])["ExecStartPre"] + directives(UNITS[0])["ExecStart"]
    assert len(lines) == 2
    for line in lines:
        command = line.split()[1]
        assert "--config" in help_of(("-m", "headgate"), (command,))
