"""`headgate backlog`: its requests and its output."""

import json
import sys

import pytest

from headgate import ExternalSource, TopicInfo
from headgate.cli.main import main
from headgate.settings.config import ClientConfig
from headgate.views.subscriptions import SegmentBacklogInfo
from tests.support.samples.cluster_overviews import backlog


class Admin:
    """Has one subscription, and records requests for backlogs."""

    def __init__(self, requests, found):
        self.requests = requests
        self.found = found

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def backlog(self, topic, subscription):
        self.requests.append((topic, subscription))
        if self.requests.count((topic, subscription)) > 2:
            raise KeyboardInterrupt
        return self.found

    announced_ledger_url = "file:///the/ledger"

    async def ledger_url(self):
        return self.announced_ledger_url

    async def list_topics(self):
        return [self.topic("orders"), self.topic("clicks", external=True)]

    async def describe_topic(self, name):
        return self.topic(name, external=name == "clicks")

    def topic(self, name, *, external=False):
        source = ExternalSource(source="", positions="opaque", hash_bits=0) if external else None
        return TopicInfo(
            topic=name, topic_id=7, shard=3, layout_epoch=0, segments=[], subscriptions=[], external=source
        )


@pytest.fixture
def requests(context):
    """The requests to a cluster with one subscription, which the leader counts."""
    segments = [SegmentBacklogInfo(segment=3, sealed=True, records=1234, size_bytes=10)]
    found = backlog(segments, counted_by="leader")
    requests: list[tuple[str | None, str | None]] = []
    admin = Admin(requests, [found])
    context.open_admin = lambda: admin
    context.client_config = lambda: ClientConfig(
        cluster="c", broker_host="b", broker_port=1, ledger_url="file:///the/ledger", file="client.toml"
    )
    return requests


@pytest.fixture
def run(context):
    """Run a command line; return its exit code."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments), obj=context)
        return ended.value.code

    return run


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], (None, None)),
        (["orders"], ("orders", None)),
        (["show", "verify"], ("verify", None)),
        (["orders", "billing"], ("orders", "billing")),
    ],
)
def test_a_topic_needs_no_subcommand(run, context, requests, arguments, wanted):
    assert run("backlog", *arguments) == 0
    assert requests == [wanted]


def test_the_table_goes_to_standard_output_and_notes_go_to_standard_error(run, context, requests, capsys):
    assert run("backlog", "orders", "--segments") == 0

    output = capsys.readouterr()
    assert ["orders", "billing", "stream", "1", "234", "10", "B", "?", "?", "?", "?"] in [
        line.split() for line in output.out.splitlines()
    ]
    assert "segment 3" in output.out
    assert "counted by the leader" in output.err


def test_json_has_null_for_unknown_values(run, context, requests, capsys):
    assert run("backlog", "--json") == 0

    (found,) = json.loads(capsys.readouterr().out)
    assert (found["records"], found["outlook"], found["counted_by"]) == (1234, "unknown", "leader")
    assert (found["oldest_ms"], found["segments"][0]["oldest_ms"]) == (None, None), "null, not omitted"


def test_watch_runs_until_it_is_interrupted(run, context, requests, capsys):
    context.watch_interval_seconds = 0

    assert run("backlog", "orders", "--watch", "--json") == 130
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("code", [0, 1])
def test_verify_counts_the_clusters_ledger_and_returns_the_verdict(run, context, requests, code):
    context.recount = code, "noise"

    assert run("backlog", "verify") == code
    assert context.commands[0][-2:] == ["--ledger", "file:///the/ledger"]


def test_verify_counts_no_ledger_that_only_the_cluster_names(run, context, requests, capsys):
    """Any client of the broker can announce a ledger. Spark must not read it with the rights of the user."""
    context.open_admin().announced_ledger_url = "s3://an/attacker"

    assert run("backlog", "verify") == 1
    assert context.commands == []
    assert capsys.readouterr().err == (
        "headgate: ledger_url is 'file:///the/ledger' in client.toml, but the cluster announces 's3://an/attacker': "
        "correct it, or name the ledger to count with --ledger\n"
    )
    assert run("backlog", "verify", "orders", "--ledger", "file:///named") == 0
    assert context.commands[0][-2:] == ["--ledger", "file:///named"]


def test_without_the_daemon_verify_says_what_to_install(run, context, requests, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "controller", None)

    assert run("backlog", "verify") == 1
    assert context.commands == []
    assert capsys.readouterr().err.endswith("python3 -m pip install . './daemon[spark]'\n")


def test_a_failed_recount_prints_its_log(run, context, requests, capsys):
    context.recount = 2, "no JVM\n"

    assert run("backlog", "verify", "--ledger", "file:///x") == 1
    output = capsys.readouterr().err
    assert output.startswith("no JVM\nheadgate: the recount failed with exit code 2")


@pytest.mark.parametrize("watch", [False, True], ids=["once", "watched"])
def test_a_narrow_terminal_shows_the_important_columns(run, context, requests, capsys, monkeypatch, watch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("headgate.cli.terminal.output.available_columns", lambda _: 60)
    context.watch_interval_seconds = 0
    run("backlog", "orders", *["--watch"] * watch)

    shown = capsys.readouterr().out
    assert ["topic", "subscription", "records", "oldest", "drained", "in"] == shown.splitlines()[0].split()[:6]
    assert 60 >= max(map(len, shown.splitlines()))
    assert "…" not in shown
