"""`headgate status`: one screen, JSON, again and again, and no leader."""

import asyncio
import json
import signal

import pytest

from headgate.cli.cluster.judgements import judge_cluster
from headgate.cli.cluster.status import MAX_DEGRADED, MAX_SUBSCRIPTIONS, led_shards, report_lines, subscription_rows
from headgate.protocol.requests import RaiseLevel, SetMaintenance
from headgate.views.cluster import ComponentInfo, FeatureLevel, ShardInfo
from tests.support.samples.cluster_overviews import NOW_MS, blocked, daemon, subscription, totals, unreachable
from tests.support.samples.cluster_overviews import cluster as overview


def test_a_screen_shows_daemons_totals_and_subscriptions(invoke, context, monkeypatch):
    monkeypatch.setattr("headgate.cli.terminal.output.available_columns", lambda _: 80)
    context.cluster.overview = overview(blocked("billing"), subscription("audit"))
    result = invoke("status")

    assert (result.exit_code, result.stderr) == (0, "not shown, for lack of space: consumers; see --json\n")
    assert "vm-1  ready, 0.1.0, up 3 min" in result.stdout
    assert "orders   billing        20.0      25.0     1 200        4 min   2 segments" in result.stdout
    assert "orders   audit          20.0      25.0     1 200        4 min   -" in result.stdout
    assert len(result.stdout.splitlines()) <= 24
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_numbers_are_shown_to_their_ends_beside_a_long_name(invoke, context, monkeypatch):
    monkeypatch.setattr("headgate.cli.terminal.output.available_columns", lambda _: 80)
    context.cluster.overview = overview(subscription("s" * 70))
    *_, row = invoke("status").stdout.splitlines()

    assert (" 1 200        4 min   -" in row, len(row)) == (True, 80)


def test_the_rest_of_many_blocked_subscriptions_is_counted(invoke, context):
    context.cluster.overview = overview(*(blocked(f"s{number}") for number in range(20)))
    lines = invoke("status").stdout.splitlines()

    assert lines[-1] == "and 12 more; see --json"
    assert len(lines) <= 24


class Watched:
    """Pauses of a watched view: each replaces the answer to come, and the last one is Ctrl-C."""

    number = signal.SIGINT

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
            signal.raise_signal(self.number)
            await asyncio.sleep(60)


def test_a_watched_cluster_is_shown_until_ctrl_c(invoke, context, monkeypatch):
    context.cluster.overview = overview(subscription("billing"))
    watched = Watched(context, monkeypatch, overview(subscription("audit")))
    result = invoke("status", "--watch")

    first, second = result.stdout.split(" UTC, by vm-1\n")[1:]
    assert (result.exit_code, result.stderr) == (0, "")
    assert ("billing" in first, "audit" in first) == (True, False)
    assert ("billing" in second, "audit" in second) == (False, True)
    assert watched.seconds == [2.0, 2.0]
    assert "\x1b" not in result.stdout


def test_sigterm_ends_a_watched_view_as_it_ends_each_command(invoke, context, monkeypatch):
    context.cluster.overview = overview()
    monkeypatch.setattr(Watched, "number", signal.SIGTERM)
    Watched(context, monkeypatch)

    assert 143 == invoke("status", "--watch").exit_code


def test_watched_json_has_one_line_for_each_answer(invoke, context, monkeypatch):
    context.cluster.overview = overview(subscription("billing"))
    watched = Watched(context, monkeypatch, overview())
    result = invoke("status", "--json", "--watch", "30")

    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(each["subscriptions"]) for each in found] == [1, 0]
    assert watched.seconds == [30.0, 30.0]


def test_a_watched_cluster_may_be_without_a_leader_for_a_while(invoke, context, monkeypatch):
    context.cluster.overview = overview()
    Watched(context, monkeypatch, None, overview())
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


OTHER_LEDGER = ComponentInfo(
    component="drain",
    state="degraded",
    reason="file:///b was counted, and this daemon's ledger is file:///a: children of split and merged segments stay "
    "blocked; see its log",
)


def test_a_cluster_without_problems():
    assert report_lines(overview()) == [
        "cluster local: 2 shards, each has a leader; complete",
        "",
        "vm-1  ready, 0.1.0, up 3 min, drain ready, http://vm-1:9464",
        "  leads 0-1 (term 3)",
        "",
        "1 topic, 3 active segments, 1 sealed; 0 subscriptions, 2 consumers",
        "20.0 records/s in, 25.0/s acknowledged, backlog 1 200 records",
    ]


def test_what_is_wrong_is_said_with_its_reason():
    lines = report_lines(
        overview(
            daemons=(daemon("vm-1", OTHER_LEDGER, state="degraded"), unreachable("vm-2")),
            leaders=("vm-1", None),
            complete=False,
            totals=totals(daemons=2, backlog_records=None, acknowledged_per_second=None, disconnected_consumers=1),
        )
    )

    assert lines == [
        "cluster local: 2 shards, 1 without a leader; incomplete: totals lack what did",
        "  not answer; degraded",
        "",
        "vm-1  degraded, 0.1.0, up 3 min, drain not ready, http://vm-1:9464",
        "  leads 0 (term 3)",
        "vm-2  unreachable, http://vm-2:9464",
        "  leads no shard",
        "without a leader: 1 (term 3)",
        "",
        "degraded:",
        "  vm-2: daemon 'vm-2' did not answer",
        "  vm-1 drain degraded: file:///b was counted, and this daemon's ledger is",
        "    file:///a: children of split and merged segments stay blocked; see its log",
        "",
        "1 topic, 3 active segments, 1 sealed; 1 subscription, 2 consumers, 1 away",
        "20.0 records/s in, ?/s acknowledged, backlog ? records",
    ]
    (headline, *_) = report_lines(overview(daemons=(daemon("vm-1", OTHER_LEDGER, state="degraded"),)))
    assert headline.endswith("each has a leader; complete; degraded")


def test_what_does_not_fit_is_counted_and_what_is_wrong_is_not_left_out(invoke, context):
    degraded = [daemon(f"a{number}", OTHER_LEDGER, state="degraded") for number in range(MAX_DEGRADED)]
    wrong = [*degraded, daemon("y", OTHER_LEDGER, state="not_ready"), daemon("b")]
    lines = report_lines(overview(daemons=wrong, leaders=("y",), totals=totals(daemons=len(wrong))))

    assert (True, False) == (
        "y  not ready, 0.1.0, up 3 min, drain not ready, http://y:9464" in lines,
        "b  re" in str(lines),
    )
    assert ["and 2 more; see --json", "  and 1 more; see --json"] == [line for line in lines if "more" in line]
    terms = [ShardInfo(shard=shard, leader_epoch=term, daemon="a") for shard, term in enumerate((1, 1, 4))]
    assert "0-1 (term 1), 2 (term 4)" == led_shards(terms)
    invoke("status")
    assert 4 == context.wait_seconds(), "it is run because something is broken"


def test_the_longest_blocked_come_first_and_then_the_largest_backlogs():
    rows = subscription_rows(
        [
            subscription("small", disconnected_consumers=1, backlog_records=7),
            subscription("large", outlook="never", drained_in_seconds=None, acknowledged_per_second=150.4),
            blocked("a", seconds=5),
            blocked("b", seconds=7200, segments=(0, 4)),
            blocked("c", blocking_segments=(), blocked_since_ms=None),
            blocked("d", seconds=60, segments=range(5), draining_segments=9),
        ],
        NOW_MS,
    )

    assert [(row[1], row[-1]) for row in rows] == [
        ("b", "2 segments for 2 h by segments 0, 4"),
        ("d", "2 segments for 60 s by segments 0, 1, 2, 3, 4, …"),
        ("a", "2 segments for 5 s by segment 0"),
        ("c", "2 segments for ? by ?"),
        ("large", "-"),
        ("small", "-"),
    ]
    assert rows[-2:] == [
        ["orders", "large", "2", "20.0", "150", "1 200", "never", "-"],
        ["orders", "small", "2 +1 away", "20.0", "25.0", "7", "4 min", "-"],
    ]
    assert len(subscription_rows([blocked(str(n)) for n in range(50)], NOW_MS)) == MAX_SUBSCRIPTIONS


def test_what_is_not_known_and_what_does_not_exist():
    unknown = {"stored_per_second": None, "acknowledged_per_second": None, "backlog_records": None}
    rows = subscription_rows(
        [subscription("a", outlook="unknown", **unknown), subscription("b", outlook="not_tracked", **unknown)], NOW_MS
    )

    assert [row[3:7] for row in rows] == [["?", "?", "?", "?"], ["?", "-", "-", "-"]]


# `headgate cluster upgrade`: what it shows, and when it raises the level.

OLD = "daemon b supports levels 1 to 1"


@pytest.mark.parametrize(
    ("newest", "problems", "shown", "raised", "judged"),
    [
        (1, (), "feature level 1, the newest that the daemons support\n", [], "ok"),
        (2, (), "feature level 1, and every daemon supports level 2: headgate cluster upgrade\n", [2], "ok"),
        (2, (OLD,), f"feature level 1, and level 2 is not possible yet:\n  {OLD}\n", [2], "warning"),
    ],
    ids=["newest", "possible", "prevented"],
)
def test_the_level_is_shown_and_raised(invoke, cluster, newest, problems, shown, raised, judged):
    """The leader refuses a level that a daemon does not support; here it does what it is asked."""
    cluster.overview = overview(feature_level=FeatureLevel(level=1, newest=newest, problems=problems))

    assert invoke("cluster", "upgrade", "--dry-run").stdout == shown
    assert [] == cluster.calls
    document = json.loads(invoke("cluster", "upgrade", "--json").stdout)
    assert [RaiseLevel(level, token="") for level in raised] == cluster.calls
    assert document == {"level": newest, "newest": newest, "problems": []}
    assert [judged] == [each.level for each in judge_cluster(cluster.overview, "1") if each.check == "feature level"]
    assert report_lines(cluster.overview)[0].startswith("cluster local: feature level 1, ")


def test_a_daemon_that_does_not_know_the_level_is_asked_again(invoke, cluster):
    cluster.overview = overview()

    assert "has not heard of the feature level yet: try again" in invoke("cluster", "upgrade").stderr


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([], "it keeps its shards 0, 1 until another daemon can take them; there is no other one"),
        ([("vm-2", "settling"), ("vm-3", "no_broker")], "it transfers its shards 0, 1 to vm-2"),
        (
            [("vm-2", "maintenance"), ("vm-3", None)],
            "it keeps its shards 0, 1 until another daemon can take them; none can now: vm-2 is in maintenance",
        ),
    ],
)
def test_drain_says_who_can_take_the_shards(invoke, cluster, others, text):
    cluster.overview = overview(daemons=[daemon(name, spread=spread) for name, spread in [("vm-1", None), *others]])
    result = invoke("daemon", "drain", "vm-1")
    assert f"daemon vm-1 is in maintenance; {text}" in result.stderr + result.stdout
    assert cluster.calls == [SetMaintenance("vm-1", True, token="")]
    assert "it leads no shard" in invoke("daemon", "drain", "vm-9").stderr
