"""`headgate backlog`: its requests and its output."""

import json

import pytest

from headgate.cli.main import main
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


@pytest.fixture
def requests(context):
    """The requests to a cluster with one subscription, which the leader counts."""
    segments = [SegmentBacklogInfo(segment=3, sealed=True, records=1234, size_bytes=10)]
    found = backlog(segments, counted_by="leader")
    requests: list[tuple[str | None, str | None]] = []
    admin = Admin(requests, [found])
    context.open_admin = lambda: admin
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
    [([], (None, None)), (["orders"], ("orders", None)), (["orders", "billing"], ("orders", "billing"))],
)
def test_topic_and_subscription_may_be_left_out(run, context, requests, arguments, wanted):
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
