"""`headgate status`: one screen, JSON, again and again, and no leader."""

import asyncio
import json
import signal

import pytest

from tests.support.samples.cluster_overviews import blocked, subscription
from tests.support.samples.cluster_overviews import cluster as _overview


def test_a_screen_shows_daemons_totals_and_subscriptions(invoke, context, monkeypatch):
    monkeypatch.setattr("headgate.cli.terminal.output.available_columns", lambda _: 80)
    context.cluster.overview = _overview(blocked("billing"), subscription("audit"))
    result = invoke("status")

    assert (result.exit_code, result.stderr) == (0, "not shown, for lack of space: consumers; see --json\n")
    assert "vm-1  ready, 0.1.0, up 3 min" in result.stdout
    assert "orders   billing        20.0      25.0     1 200        4 min   2 segments" in result.stdout
    assert "orders   audit          20.0      25.0     1 200        4 min   -" in result.stdout
    assert len(result.stdout.splitlines()) <= 24
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_rest_of_many_blocked_subscriptions_is_counted(invoke, context):
    context.cluster.overview = _overview(*(blocked(f"s{number}") for number in range(20)))
    lines = invoke("status").stdout.splitlines()

    assert lines[-1] == "and 12 more; see --json"
    assert len(lines) <= 24


class Watched:
    """Pauses of a watched view: each replaces the answer to come, and the last one is Ctrl-C."""

    def __init__(self, context, monkeypatch, *overviews):
        self.seconds = []
        self._overviews = iter(overviews)
        self._cluster = context.cluster
        monkeypatch.setattr(type(context), "pause", lambda _, seconds: self.pause(seconds))

    async def pause(self, seconds):
        self.seconds.append(seconds)
        try:
            self._cluster.overview = next(self._overviews)
        except StopIteration:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)


def test_a_watched_cluster_is_shown_until_ctrl_c(invoke, context, monkeypatch):
    context.cluster.overview = _overview(subscription("billing"))
    watched = Watched(context, monkeypatch, _overview(subscription("audit")))
    result = invoke("status", "--watch")

    first, second = result.stdout.split(" UTC, by vm-1\n")[1:]
    assert (result.exit_code, result.stderr) == (0, "")
    assert ("billing" in first, "audit" in first) == (True, False)
    assert ("billing" in second, "audit" in second) == (False, True)
    assert watched.seconds == [2.0, 2.0]
    assert "\x1b" not in result.stdout


def test_watched_json_has_one_line_for_each_answer(invoke, context, monkeypatch):
    context.cluster.overview = _overview(subscription("billing"))
    watched = Watched(context, monkeypatch, _overview())
    result = invoke("status", "--json", "--watch", "30")

    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(each["subscriptions"]) for each in found] == [1, 0]
    assert watched.seconds == [30.0, 30.0]


def test_a_watched_cluster_may_be_without_a_leader_for_a_while(invoke, context, monkeypatch):
    context.cluster.overview = _overview()
    Watched(context, monkeypatch, None, _overview())
    result = invoke("status", "--watch", "--json")

    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert result.stderr == "no answer: no leader describes cluster 'local'\n"


def test_a_cluster_that_never_answered_is_an_error(invoke):
    result = invoke("status", "--watch")

    assert (result.exit_code, result.stdout) == (1, "")


@pytest.mark.parametrize("interval", ["0.4", "nan", "soon"])
def test_an_interval_has_limits(interval, invoke):
    result = invoke("status", "--watch", interval)

    assert result.exit_code == 2
    assert "--watch" in result.stderr
