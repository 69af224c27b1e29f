"""`headgate backlog`: what it asks for, and what it prints."""

from __future__ import annotations

import json

import pytest

from controller.cli import backlog as cli_backlog
from controller.cli import context as session
from controller.cli.main import main
from headgate import BacklogInfo, ExternalSource, TopicInfo
from headgate.client.admin_values import public_value
from headgate.protocol.backlog import SegmentBacklog, summarize_backlog


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


class Admin:
    """Has one subscription, and notes what it was asked for."""

    def __init__(self, asked, found):
        self.asked = asked
        self.found = found

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def backlog(self, topic, subscription):
        self.asked.append((topic, subscription))
        if self.asked.count((topic, subscription)) > 2:
            raise KeyboardInterrupt
        return self.found

    async def ledger_url(self):
        return "file:///the/ledger"

    async def list_topics(self):
        return [self.topic("orders"), self.topic("clicks", external=True)]

    async def describe_topic(self, name):
        return self.topic(name, external=name == "clicks")

    def topic(self, name, *, external=False):
        return TopicInfo(
            topic=name,
            topic_id=7,
            shard=3,
            layout_epoch=0,
            segments=[],
            subscriptions=[],
            external=ExternalSource(source="", positions="opaque", hash_bits=0) if external else None,
        )


@pytest.fixture
def asked(monkeypatch):
    """What was asked of a cluster with one subscription, counted by the leader."""
    found = summarize_backlog(
        topic="orders",
        subscription="billing",
        subscription_type="STREAM",
        counted_by="leader",
        as_of_ms=1,
        segments=[SegmentBacklog(segment=3, sealed=True, records=1234, size_bytes=10)],
    )
    asked: list[tuple[str | None, str | None]] = []
    monkeypatch.setattr(session, "client_config", lambda: None)
    monkeypatch.setattr(session, "open_admin", lambda config: Admin(asked, [public_value(found, BacklogInfo)]))
    return asked


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], (None, None)),
        (["orders"], ("orders", None)),
        (["show", "verify"], ("verify", None)),
        (["orders", "--subscription", "billing"], ("orders", "billing")),
    ],
)
def test_a_topic_needs_no_word_before_it(asked, arguments, wanted):
    assert run("backlog", *arguments) == 0
    assert asked == [wanted]


def test_the_table_is_for_people_and_how_it_was_counted_goes_to_standard_error(asked, capsys):
    assert run("backlog", "orders", "--segments") == 0

    said = capsys.readouterr()
    assert ["orders", "billing", "stream", "1", "234", "10", "B", "?", "?", "?", "?"] in [
        line.split() for line in said.out.splitlines()
    ]
    assert "segment 3" in said.out
    assert "counted by the leader" in said.err


def test_json_is_for_programs(asked, capsys):
    assert run("backlog", "--json") == 0

    (found,) = json.loads(capsys.readouterr().out)
    assert (found["records"], found["outlook"], found["counted_by"]) == (1234, "unknown", "leader")
    assert (found["oldest_ms"], found["segments"][0]["oldest_ms"]) == (None, None), "null, and not left out"


def test_watching_goes_on_until_it_is_ended(asked, capsys, monkeypatch):
    monkeypatch.setattr(cli_backlog, "WATCH_INTERVAL_SECONDS", 0)

    assert run("backlog", "orders", "--watch", "--json") == 130
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_subscription_without_its_topic_is_refused(asked, capsys):
    assert run("backlog", "-s", "billing") == 2
    assert "--subscription needs a TOPIC" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_verify_counts_the_clusters_own_ledger_and_hands_on_the_verdict(asked, monkeypatch, code):
    commands = []

    def ran(command):
        commands.append(command)
        return code, "noise"

    monkeypatch.setattr(cli_backlog, "_run", ran)

    assert run("backlog", "verify") == code
    assert commands[0][-2:] == ["--ledger", "file:///the/ledger"]


def test_verify_hands_on_what_spark_needs(asked, monkeypatch):
    commands = []
    monkeypatch.setattr(cli_backlog, "_run", lambda command: commands.append(command) or (0, ""))

    spark = ("--master", "spark://m:7077", "--reader", "spark", "--conf", "a=1", "--conf", "b=2")
    assert run("backlog", "verify", "--ledger", "s3a://x", *spark) == 0
    assert commands[0][3:-2] == list(spark)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "external, their tables are not read here: clicks\n"),
        (["clicks"], "external, their tables are not read here: clicks\n"),
        (["orders"], ""),
        (["--ledger", "file:///x"], ""),
    ],
    ids=["all topics", "an external one", "a stored one", "a ledger without a cluster"],
)
def test_verify_says_of_which_topics_it_does_not_read_the_tables(asked, monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(cli_backlog, "_run", lambda command: (0, ""))

    assert run("backlog", "verify", *arguments) == 0
    assert capsys.readouterr().err == said


def test_a_recount_that_breaks_down_shows_what_was_said(asked, monkeypatch, capsys):
    monkeypatch.setattr(cli_backlog, "_run", lambda command: (2, "no JVM\n"))

    assert run("backlog", "verify", "--ledger", "file:///x") == 1
    said = capsys.readouterr().err
    assert said.startswith("no JVM\nheadgate: the recount could not be carried out (code 2)")
