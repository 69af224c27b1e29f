"""The systemd units, and the files that belong to them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controller.leader.shard_controller import HANDOVER_TIMEOUT_SECONDS
from controller.settings.load import load_settings
from drain.service.service import STOP_SECONDS
from metrics.http import CLOSE_SECONDS
from metrics.systemd import START_EXTENSION_SECONDS

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = ("headgate.service", "headgate-backlog.service", "headgate-backlog-once.service")
TIMER = "headgate-backlog-once.timer"
HIGHEST_EXPOSURE = 1.5

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is missing; it comes with the systemd package, on every Debian host",
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
    """Both units as they are, but for the program: it is not installed where the tests run."""
    for unit in UNITS:
        text = (DEPLOY / unit).read_text()
        text, count = re.subn(r"/opt/headgate/\.venv/bin/\w+", "/bin/true", text)
        assert count, "the unit starts nothing of ours"
        (tmp_path / unit).write_text(text)
    shutil.copy(DEPLOY / TIMER, tmp_path)
    return tmp_path


def analyze(folder, *arguments):
    return subprocess.run(
        ["systemd-analyze", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd_analyze
def test_systemd_accepts_both_units(installed):
    """Not a word of complaint: a misspelt directive is only a warning, and would be ignored for ever."""
    result = analyze(installed, "verify", *(f"./{unit}" for unit in (*UNITS, TIMER)))

    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd_analyze
def test_the_check_notices_a_misspelt_directive(installed):
    """The test above would fail, were there something to say."""
    unit = installed / UNITS[0]
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))

    assert "WatchdogSecs" in analyze(installed, "verify", f"./{UNITS[0]}").stderr


@needs_systemd_analyze
@pytest.mark.parametrize("unit", UNITS)
def test_both_units_are_hardened(installed, unit):
    """systemd's own score, from 0 (nothing to reach) to 10."""
    result = analyze(installed, "security", "--offline=yes", "--no-pager", f"./{unit}")
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", result.stdout)

    assert score, result.stdout + result.stderr
    assert float(score[1]) <= HIGHEST_EXPOSURE


def test_the_traps_are_stepped_around():
    """Each of these was seen to break something."""
    daemon, backlog = (directives(unit) for unit in UNITS[:2])

    assert daemon["MemoryDenyWriteExecute"] == ["yes"]
    assert "MemoryDenyWriteExecute" not in backlog, "a JVM dies of it"
    for unit in (daemon, backlog):
        assert "ProcSubset" not in unit, "it takes all process_* metrics away"
        assert unit["ProtectProc"] == ["invisible"]
        assert unit["KillMode"] == ["mixed"], "SIGTERM to a JVM before its Python breaks the orderly stop"
        assert unit["StartLimitIntervalSec"] == ["0"], "it would give up after five starts"
    assert any("java.io.tmpdir=/var/lib/" in value for value in backlog["Environment"]), "/tmp and /run may be noexec"
    assert "RuntimeDirectory" not in daemon, "two owners: whichever stops first removes the other's socket"
    secret = re.compile("password|secret|token", re.IGNORECASE)
    assert not [value for unit in (daemon, backlog) for value in unit.get("Environment", []) if secret.search(value)]


def test_the_limits_have_room_for_what_they_limit():
    """The unit's times are those of the program: a sum that outgrows its limit is found here, not at a stop."""
    daemon, backlog = (directives(unit) for unit in UNITS[:2])
    settings = load_settings(DEPLOY / "headgate.toml")
    locks, broker, child = settings.zookeeper.session_timeout_seconds, 2, 5
    longest_stop = (
        HANDOVER_TIMEOUT_SECONDS + settings.ingest.write_timeout_seconds + locks + broker + CLOSE_SECONDS + child
    )

    assert float(daemon["TimeoutStopSec"][0]) >= longest_stop
    assert float(backlog["TimeoutStopSec"][0]) >= STOP_SECONDS + 1
    assert float(daemon["WatchdogSec"][0]) == START_EXTENSION_SECONDS == float(daemon["TimeoutStartSec"][0])


def test_the_example_settings_fit_the_units():
    """The daemon asks where the Spark process listens, about the ledger that it reads, and starts none itself."""
    settings = load_settings(DEPLOY / "headgate.toml")
    daemon, backlog = (directives(unit) for unit in UNITS[:2])
    environment = dict(value.split("=", 1) for value in backlog["Environment"])

    assert not settings.drain.spawn
    assert environment["HEADGATE_DRAIN_SOCKET"] == settings.drain.socket
    assert environment["HEADGATE_LEDGER"] == settings.ledger.url
    assert settings.drain.socket == f"unix:/run/{backlog['RuntimeDirectory'][0]}/drain.sock"
    assert f"/var/lib/{backlog['StateDirectory'][0].split()[0]}" in backlog["ExecStart"][0]
    for unit in UNITS[1:]:
        assert "headgate/ledger" in directives(unit)["StateDirectory"][0].split(), "results are published beside chunks"
    assert daemon["StateDirectory"] == ["headgate"], "the ledger's folder, which ProtectSystem=strict would close"


def test_the_password_that_the_example_names_is_the_credential(tmp_path):
    """With the two lines of [broker] switched on, the file comes from systemd."""
    text = (DEPLOY / "headgate.toml").read_text()
    switched_on = re.sub(r"^# (username|password_file) =", r"\1 =", text, flags=re.MULTILINE)
    assert switched_on != text
    (tmp_path / "headgate.toml").write_text(switched_on)
    credential, source = directives(UNITS[0])["LoadCredential"][0].split(":")
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / credential).write_text("sesame\n")

    settings = load_settings(tmp_path / "headgate.toml", credentials=credentials)
    assert settings.broker.password() == "sesame"
    made = [line.split()[1] for line in (DEPLOY / "tmpfiles.conf").read_text().splitlines() if line.startswith("f ")]
    assert made == [source], "LoadCredential= fails where its file is missing"


def test_the_spark_process_takes_the_options_that_its_unit_gives():
    """Every option in ExecStart= is one of the program's."""
    used = re.findall(r"--[a-z-]+", directives(UNITS[1])["ExecStart"][0])
    shown = subprocess.run(
        [sys.executable, "-m", "drain.service.service", "--help"],
        cwd=DEPLOY.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert used
    assert [option for option in used if f"{option} " not in shown] == []


def test_the_daemon_takes_the_options_that_its_unit_gives():
    """Both commands of the unit exist, with the option they are given."""
    lines = directives(UNITS[0])["ExecStartPre"] + directives(UNITS[0])["ExecStart"]
    assert len(lines) == 2
    for line in lines:
        command = line.split()[1]
        shown = subprocess.run(
            [sys.executable, "-m", "controller", command, "--help"],
            cwd=DEPLOY.parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        assert "--config" in shown, command


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is missing; see systemd")
def test_the_user_of_the_units_is_made(tmp_path):
    """systemd-sysusers takes the file, and makes the user that both units run as."""
    result = subprocess.run(
        ["systemd-sysusers", "--dry-run", f"--root={tmp_path}", "-"],
        input=(DEPLOY / "sysusers.conf").read_text(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "user 'headgate'" in result.stdout + result.stderr
    assert {user for unit in UNITS for user in directives(unit)["User"]} == {"headgate"}


def test_no_path_of_a_developer_stands_in_what_is_shipped():
    """Everything names the places where it is installed."""
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert not re.search(r"/(root|home|work)/", path.read_text()), path
