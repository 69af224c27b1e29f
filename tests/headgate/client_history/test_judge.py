"""The judge of histories: each history here has one violation, or none."""

from itertools import count
from typing import Any, Self

import pytest

from headgate.client_history.judge import fault_of, judge

Events = list[dict[str, Any]]


class Written:
    """A history in the making. Times count lines."""

    def __init__(self) -> None:
        self.events: Events = []
        self._times = count()

    def add(self, event: str, **fields: Any) -> Self:
        self.events.append({"event": event, "topic": "t", "at": next(self._times)} | fields)
        return self

    def send(self, *records: str, sender: str = "p", outcome: str | None = "stored", **fields: Any) -> Self:
        for record in records:
            self.add("send", record=record, sender=sender, **{"key": "k"} | fields)
        for record in records if outcome else ():
            self.add("outcome", record=record, outcome=outcome)
        return self

    def get(self, *records: str, subscription: str = "s", **fields: Any) -> Self:
        for record in records:
            self.add("delivery", record=record, subscription=subscription, **{"place": f"0:{record}"} | fields)
        return self

    def mark(self, event: str, *records: str) -> Self:
        for record in records:
            self.add(event, record=record, subscription="s")
        return self

    def key(self, *events: str) -> Self:
        for event in events:
            self.add(event, key="k", subscription="s")
        return self


VIOLATIONS = {
    "lost": [
        Written().send("a", "b").get("a"),
        Written().send("a").get("a").add("parked", subscription="other", key="k"),
        Written().send("a", "b", "c").get("a", "b").get("a", "b", "c", subscription="other"),
        Written().send("a", "b"),
        Written().send("a").get("a").add("seek", subscription="s").send("b", "c").get("c"),
    ],
    "stored despite failure": [Written().send("a", outcome="not stored").get("a")],
    "stored twice": [
        Written().send("a").get("a").get("a", place="0:9"),
        Written().send("a").get("a").get("a", place="1:0", subscription="other"),
        Written().send("a", "b").get("a", "b", place="0:0"),
    ],
    "never sent": [Written().send("a").get("a", "x")],
    "repeated": [
        Written().send("a").get("a").mark("acknowledged", "a").get("a"),
        Written().send("a").get("a", ordered=False).mark("acknowledged", "a").get("a", ordered=False),
    ],
    "out of order": [
        Written().send("a", "b").get("b", "a"),
        Written().send("a", "b", "c").get("b", "c", "a"),
        Written().send("a", "b", "c").get("a", "c", "a", "c", "b"),
        Written().send("a", outcome=None).send("b").get("b", "a"),
        Written().send("a", "b").get("a", "b").add("seek", subscription="s").get("b", "a"),
        Written().send("a", sender="p").send("b", sender="q").get("b", "a"),
        Written().send("x", sender="r", outcome=None).send("a").send("b", sender="q").get("b", "x", "a"),
    ],
    "parked": [
        Written().send("a", "b").get("a").key("parked").get("b"),
        Written().send("a", "b").key("parked", "resumed").get("a").key("parked").get("b"),
    ],
    "changed": [Written().send("a", content="1").get("a", content="2")],
    "two holders": [
        Written().send("a", "b").get("a", generation=1).get("a", generation=2).get("b", generation=1),
        Written().send("a").get("a", generation=3).get("a", generation=2),
    ],
    "count": [
        Written().send("a").get("a", count=1, ordered=False).mark("failed", "a").get("a", count=1, ordered=False),
        Written().send("a").get("a").mark("failed", "a", "a").get("a", count=2),
    ],
}


@pytest.mark.parametrize(("rule", "history"), [(rule, each) for rule, some in VIOLATIONS.items() for each in some])
def test_a_history_with_one_violation_breaks_one_rule_once(rule: str, history: Written) -> None:
    assert [each.rule for each in judge(history.events, complete=True)] == [rule]


def test_what_is_allowed_is_no_violation() -> None:
    h = Written().send("a", content="1").send("b", "c").send("u", outcome="unknown").send("n", outcome="not stored")
    h.send("x", key="other", sender="q").get("x", "a", "b")
    h.get("a", "b", content="1")  # by the next holder: nothing was acknowledged
    h.mark("acknowledged", "a", "b").key("parked", "resumed").get("c", place=None).get("u")
    h.get("b", "c", "a", "x", subscription="queue", ordered=False, count=1)
    h.add("seek", subscription="s").get("b", "c", generation=2).get("x", generation=1)
    h.add("seek", subscription="queue").get("b", subscription="queue", ordered=False, generation=2)
    h.get("b", subscription="queue", ordered=False, generation=1)
    assert judge(h.events, complete=True) == []


def test_records_that_were_sent_at_the_same_time_have_no_order() -> None:
    h = Written().send("a", outcome=None).send("b", sender="q", outcome=None)
    h.add("outcome", record="a", outcome="stored").add("outcome", record="b", outcome="stored")
    h.get("b", "a").get("a", "b", subscription="other")
    assert judge(h.events, complete=True) == []


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"event": ["send"]}, "event ['send'] is none of send, outcome, "),
        ({"event": "sent"}, "event 'sent' is none of send, outcome, "),
        ({"event": "outcome", "topic": "t", "at": 1, "record": "a"}, "outcome lacks outcome"),
        ({"event": "outcome", "topic": "t", "at": 1, "record": "a", "outcome": "ok"}, "outcome 'ok' is none of "),
        ({"event": "seek", "topic": "t", "at": "1", "subscription": "s"}, "seek has at '1', "),
        ({"event": "seek", "topic": ["t"], "at": 1, "subscription": "s"}, "seek has topic ['t'], "),
        ({"event": "seek", "topic": "t", "at": 1, "subscription": "s"}, None),
    ],
)
def test_the_form_of_an_event_is_checked(event: dict[str, Any], fault: str | None) -> None:
    found = fault_of(event)
    assert found is None if fault is None else found is not None and found.startswith(fault)
