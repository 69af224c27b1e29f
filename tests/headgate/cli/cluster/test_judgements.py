"""What `headgate doctor` makes of measured values."""

import pytest

from headgate.cli.cluster import judgements as judge
from headgate.protocol.codec import MAX_MESSAGE_BYTES
from headgate.transport.port import BrokerProperties
from headgate.views.cluster import ComponentInfo
from tests.support.samples.cluster_overviews import NOW_MS, cluster, daemon, unreachable

DAY = 86_400


def levels(findings):
    return {each.check: each.level for each in findings}


def test_every_finding_that_is_not_ok_has_a_remedy():
    found = [
        *judge.judge_broker(
            "b",
            BrokerProperties(answer_seconds=2, maximum_packet_bytes=9, maximum_qos=0, retains=False, wildcards=False),
        ),
        judge.judge_store("file:///x", 0, 0.0),
        *judge.judge_ledger_url("a", "b", "client.toml"),
        *judge.judge_cluster(cluster(daemons=(unreachable(), daemon(version="2")), leaders=("vm-1", None)), "1"),
        *judge.judge_clock(cluster(), NOW_MS + 10_000, NOW_MS + 10_001),
        *judge.judge_clock_steps(9.0, 1.0),
        judge.judge_certificate("ca_file", "x.pem", 0, DAY),
        judge.judge_space("disk", "/x", 1, 100, 10),
        judge.judge_folder("folder", "/x", exists=True, writable=False, mode=0),
    ]

    wrong = [each for each in found if each.level != "ok"]
    assert len(wrong) == 15
    assert all(each.remedy for each in wrong), found


@pytest.mark.parametrize(
    ("accepted", "level"),
    [(None, "ok"), (5_242_880, "ok"), (MAX_MESSAGE_BYTES + 1024, "ok"), (MAX_MESSAGE_BYTES + 1023, "problem")],
)
def test_the_broker_must_accept_the_largest_message(accepted, level):
    found = judge.judge_broker("b", BrokerProperties(answer_seconds=0.003, maximum_packet_bytes=accepted))

    assert levels(found) == {"broker": "ok", "packet size": level}
    assert found[0].text == "b answers in 3 ms"


def test_a_slow_answer_is_a_warning():
    assert levels(judge.judge_broker("b", BrokerProperties(answer_seconds=1.5)))["broker"] == "warning"
    assert judge.judge_store("file:///x", 5, 1.5).level == "warning"
    assert judge.judge_store("file:///x", 5, 0.5).level == "ok"
    assert judge.judge_ledger_url("file:///x", "file:///x", "c.toml") == []


def test_daemons_and_leaders():
    slow = ComponentInfo(
        component="drain", state="degraded", reason="starting: a; b: children stay blocked; see its log"
    )
    lost = ComponentInfo(
        component="broker", state="failed", reason="not connected: clients cannot reach it; check [broker]"
    )
    daemons = (daemon("a"), daemon("b", slow, state="degraded"), daemon("c", lost, state="not_ready"), unreachable("d"))
    found = judge.judge_cluster(cluster(daemons=daemons, leaders=("a", None)), "0.1.0")

    assert [(each.check, each.level) for each in found] == [
        ("leaders", "problem"),
        ("daemon a", "ok"),
        ("daemon b", "warning"),
        ("daemon c", "problem"),
        ("daemon d", "problem"),
        ("versions", "ok"),
    ]
    assert (found[2].text, found[2].remedy) == ("drain: starting: a; b: children stay blocked", "see its log")
    assert found[0].text == "shards without a leader: 1"


def test_other_versions_are_a_warning():
    found = judge.judge_cluster(cluster(daemons=(daemon("a"), daemon("b", version="0.2.0"))), "0.1.0")

    assert found[-1].text == "the client is 0.1.0, daemons are 0.2.0"
    assert judge.judge_cluster(cluster(daemons=(daemon(version=None),)), "9")[-1].level == "ok", "unknown is not other"


@pytest.mark.parametrize(
    ("asked", "answered", "level"),
    [
        (0, 10, "ok"),
        (900, 1000, "ok"),
        (-4999, -4999, "ok"),
        (-5000, -5000, "warning"),
        (5000, 5100, "warning"),
        (60_000, 60_100, "problem"),
        (-60_000, -59_999, "warning"),
        (-90_000, -60_000, "problem"),
    ],
)
def test_clocks_are_compared_with_the_time_that_the_question_took(asked, answered, level):
    (found,) = judge.judge_clock(cluster(), NOW_MS + asked, NOW_MS + answered)

    assert found.level == level


def test_the_direction_of_a_clock_is_said():
    (behind,) = judge.judge_clock(cluster(), NOW_MS + 30_000, NOW_MS + 30_100)
    (ahead,) = judge.judge_clock(cluster(), NOW_MS - 30_100, NOW_MS - 30_000)

    assert [f"daemon vm-1 is 30 s {way} this machine" for way in ("behind", "ahead of")] == [behind.text, ahead.text]
    assert judge.judge_clock(cluster(daemons=(unreachable(),)), 0, 0)[0].level == "ok"


def test_a_step_of_the_wall_clock_is_seen():
    assert judge.judge_clock_steps(2.4, 2.0) == []
    assert judge.judge_clock_steps(2.0, 3.0)[0].text == "the wall clock stepped by -1.0 s while the checks ran"


@pytest.mark.parametrize(("days", "level"), [(-0.1, "problem"), (13.9, "warning"), (14.1, "ok")])
def test_certificates_are_renewed_in_time(days, level):
    assert judge.judge_certificate("ca_file", "x.pem", days * DAY, 0.0).level == level


@pytest.mark.parametrize(("free", "level"), [(99, "problem"), (100, "warning"), (200, "ok")])
def test_space_has_a_minimum_and_a_tenth(free, level):
    assert judge.judge_space("disk", "/x", free, 2000, 100).level == level
    assert "its inodes free (df -i)" in judge.judge_space("disk", "/x", free, 2000, 100, lacks_inodes=True).text


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"exists": False, "writable": False, "mode": 0}, "warning"),
        ({"exists": True, "writable": False, "mode": 0o755}, "problem"),
        ({"exists": True, "writable": True, "mode": 0o777}, "problem"),
        ({"exists": True, "writable": True, "mode": 0o1777}, "ok"),
        ({"exists": True, "writable": True, "mode": 0o770}, "ok"),
    ],
    ids=["missing", "of another user", "open to all", "sticky", "of a group"],
)
def test_folders(facts, level):
    assert judge.judge_folder("ledger folder", "/x", **facts).level == level
