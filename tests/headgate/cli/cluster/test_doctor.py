"""`headgate doctor`: what a client checks, against servers of the test, and what the command does with findings."""

import asyncio
import json
import socket
import sys
from unittest.mock import AsyncMock

import pytest

from headgate.cli.cluster.client_checks import client_findings
from headgate.errors import NoLeaderError, RequestRejectedError
from headgate.ledger.ledger import Ledger
from tests.support.fakes.cli_client import FakeAdmin
from tests.support.samples.cluster_overviews import cluster as overview
from tests.support.samples.ledgers import WrittenLedger
from tests.support.servers.scripted_broker import connack, scripted_broker

pytestmark = pytest.mark.real_time


@pytest.fixture
def configured(tmp_path, context, monkeypatch):
    """Return a function that writes the configuration for a broker at a port."""
    ledger = tmp_path / "ledger"
    WrittenLedger(ledger).commit()
    context.cluster.overview = overview()
    monkeypatch.setattr(FakeAdmin, "ledger_url", AsyncMock(return_value=ledger.as_uri()), raising=False)

    def write(port, more=""):
        file = tmp_path / "client.toml"
        file.write_text(
            f'cluster = "local"\nbroker_host = "127.0.0.1"\nbroker_port = {port}\nledger_url = "{ledger.as_uri()}"\n{more}'
        )
        context.config = file
        monkeypatch.setenv("HEADGATE_CONFIG", str(file))

    return write


def levels(findings):
    return {each.check: each.level for each in findings}


async def test_a_cluster_in_which_all_is_well(configured, context):
    async with scripted_broker(connack()) as port:
        configured(port)
        found = await client_findings(context)

    assert levels(found) == dict.fromkeys(
        ["configuration", "broker", "packet size", "leaders", "daemon vm-1", "versions", "clock", "store"], "ok"
    ) | {"clock": "problem"}, "the clock of the sample is in 2023"


@pytest.mark.parametrize(
    ("answer", "text"),
    [(None, "it does not say what it accepts"), (b"\x20\x02\x00\x01", "speaks no MQTT 5")],
    ids=["it closes the connection", "it refuses MQTT 5"],
)
async def test_a_broker_that_says_nothing_of_itself_is_a_warning_if_the_cluster_answers(
    configured, context, answer, text
):
    async with scripted_broker(answer, later=b"\x20\x02\x00\x00") as port:
        configured(port)
        found = await client_findings(context)

    (broker,) = [each for each in found if each.check == "broker"]
    assert (broker.level, text in broker.text) == ("warning", True)


async def test_a_cluster_that_does_not_answer_and_a_ledger_that_is_away_are_both_problems(
    configured, context, tmp_path
):
    (tmp_path / "ledger").rename(tmp_path / "away")
    context.cluster.overview = None
    async with scripted_broker(connack()) as port:
        configured(port)
        found = await client_findings(context)

    oks = {"configuration": "ok", "broker": "ok", "packet size": "ok"}
    assert levels(found) == oks | {"cluster": "problem", "store": "problem"}
    cluster, store = found[-2:]
    assert cluster.text == "no leader describes cluster 'local'"
    assert store.remedy.startswith("mount the ledger's disk there")


async def test_a_store_that_does_not_answer_is_given_up(configured, context, monkeypatch):
    monkeypatch.setattr("headgate.cli.cluster.client_checks.STORE_SECONDS", 0.01)
    monkeypatch.setattr(Ledger, "newest", lambda _: asyncio.Event().wait())
    async with scripted_broker(connack()) as port:
        configured(port)
        *_, store = await client_findings(context)

    assert ("store", "problem", True) == (store.check, store.level, "did not answer within 0.01 s" in store.text)


async def test_a_missing_right_is_a_warning(configured, context, monkeypatch):
    refused = RequestRejectedError("forbidden", "user 'eve' may not describe all topics")
    monkeypatch.setattr(FakeAdmin, "describe_cluster", AsyncMock(side_effect=refused))
    async with scripted_broker(connack()) as port:
        configured(port)
        found = await client_findings(context)

    assert levels(found)["cluster"] == "warning"


async def test_another_ledger_is_a_problem(configured, context, tmp_path):
    async with scripted_broker(connack()) as port:
        configured(port)
        (tmp_path / "empty").mkdir()
        file = context.config
        file.write_text(file.read_text().replace("/ledger", "/empty"))
        found = await client_findings(context)

    assert (levels(found)["store"], levels(found)["ledger_url"]) == ("problem", "problem")


async def test_an_invalid_configuration_is_the_only_finding(configured, context):
    configured(0)
    (found,) = await client_findings(context)

    assert ("configuration", "problem") == (found.check, found.level)
    assert "correct it, or name another one with --config" == found.remedy
    assert "broker_port" in found.text
    configured(1, 'username = "me"\npassword_file = "none"\n')
    (found,) = await client_findings(context)
    assert found.text.startswith(f"{context.config}: password_file: cannot read ")


# The command


@pytest.fixture
def no_broker(configured):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        configured(closed.getsockname()[1])


def test_a_problem_is_exit_code_1(invoke, no_broker, monkeypatch):
    unreachable = NoLeaderError("cannot reach the broker at 127.0.0.1:1 (from client.toml): refused")
    monkeypatch.setattr(FakeAdmin, "describe_cluster", AsyncMock(side_effect=unreachable))
    result = invoke("doctor")

    assert result.exit_code == 1
    assert "problem  cluster: cannot reach the broker at 127.0.0.1:1 (from client.toml)" in result.stdout
    assert result.stdout.endswith("2 ok, 0 warnings, 1 problem\n")
    assert result.stderr == "what a daemon needs on its machine: headgate doctor --daemon-config FILE\n"
    assert json.loads(invoke("doctor", "--json").stdout)[-2]["level"] == "problem"


def test_the_checks_of_a_daemon_follow(invoke, configured, tmp_path):
    configured(1)
    result = invoke("doctor", "--daemon-config", str(tmp_path / "absent.toml"), "--json")

    assert result.exit_code == 1
    (*_, found) = json.loads(result.stdout)
    assert (found["check"], found["level"]) == ("settings", "problem")
    assert str(tmp_path / "absent.toml") in found["text"]


def test_a_daemon_that_is_no_client_is_checked_alone(invoke, context, monkeypatch, tmp_path):
    """A configuration of a client that is named must exist all the same."""
    context.config = None
    monkeypatch.chdir(tmp_path)
    for named, level in (("", "ok"), (str(tmp_path / "client.toml"), "problem")):
        monkeypatch.setenv("HEADGATE_CONFIG", named)
        result = invoke("doctor", "--daemon-config", str(tmp_path / "absent.toml"), "--json")
        found = [(each["check"], each["level"]) for each in json.loads(result.stdout)]
        assert [("configuration", level), ("settings", "problem")] == found


def test_without_the_daemon_its_checks_say_what_to_install(invoke, configured, monkeypatch, tmp_path):
    configured(1)
    monkeypatch.setitem(sys.modules, "controller", None)
    result = invoke("doctor", "--daemon-config", str(tmp_path / "headgate.toml"))

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("python3 -m pip install . './daemon'\n")
