"""Judge a client history: what programs sent, and what their consumers got. Pure, and it imports nothing of headgate.

It is a list of events, each a mapping with ``event`` and these fields. ``at`` is a number, from a clock that all
programs share; ``record`` names a record within its topic; ``place`` is where it is stored.

* ``send``: at, topic, key, record, sender; it may have content, such as a digest. One sender's are listed in its order.
* ``outcome``: topic, record, at, outcome: "stored", "not stored" or "unknown".
* ``delivery``: topic, subscription, at, record; it may have place, content, count (QUEUE), generation, which rises when
  another consumer gets the segment, and ordered: false, if the subscription does not keep the order of keys. Then rules
  6, 7 and 10 do not apply.
* ``acknowledged``, ``failed``: topic, subscription, at, record: its positive or negative acknowledgement is stored.
* ``parked``, ``resumed``: topic, subscription, at, key.
* ``seek``: topic, subscription, at: the subscription was moved, and is judged again from here, rule 1 for later sends.

The rules:

1. *lost*: every subscription, at least one, gets every record whose outcome is "stored", if the history is complete.
2. *stored despite failure*: no subscription gets a record whose outcome is "not stored".
3. *stored twice*: a record has one place, and a place one record.
4. *never sent*: no subscription gets a record without a send, in a topic of which the history has one.
5. *repeated*: a subscription does not get a record again whose acknowledgement is stored.
6. *out of order*: a subscription gets the records of a key for the first time in the order of each sender. Across
   senders: not after one that was sent once it was stored.
7. *parked*: between ``parked`` and ``resumed`` a subscription gets no record of the key.
8. *count*: the count of a delivery is above the number of failures of the record before it.
9. *changed*: a record that is delivered has the content with which it was sent.
10. *two holders*: no record of a key is delivered at an older generation once one was at a newer generation.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

FIELDS: Final = {
    "send": ("topic", "at", "key", "record", "sender"),
    "outcome": ("topic", "at", "record", "outcome"),
    **dict.fromkeys(("delivery", "acknowledged", "failed"), ("topic", "at", "subscription", "record")),
    **dict.fromkeys(("parked", "resumed"), ("topic", "at", "subscription", "key")),
    "seek": ("topic", "at", "subscription"),
}
TEXT: Final = str | None
TYPES: Final = {"at": int | float, "count": int, "generation": int, "ordered": bool, "place": TEXT, "content": TEXT}
OUTCOMES: Final = ("stored", "not stored", "unknown")

Event = Mapping[str, Any]


class Violation(NamedTuple):
    rule: str
    topic: str
    subscription: str  # Empty if it concerns all.
    detail: str


def fault_of(event: Event) -> str | None:
    """Return what is wrong with the form of an event; None: nothing."""
    fields = FIELDS.get(str(event.get("event")))
    if fields is None:
        return f"event {event.get('event')!r} is none of {', '.join(FIELDS)}"
    if missing := [name for name in fields if name not in event]:
        return f"{event['event']} lacks {', '.join(missing)}"
    for name in event.keys() & {*fields, *TYPES}:
        if not isinstance(event[name], TYPES.get(name, str)):
            return f"{event['event']} has {name} {event[name]!r}, which is of another type"
    if event["event"] == "outcome" and event["outcome"] not in OUTCOMES:
        return f"outcome {event['outcome']!r} is none of {', '.join(OUTCOMES)}"
    return None


@dataclass(slots=True)
class _Sent:
    key: str
    sender: str
    number: int  # Its place among what was sent.
    at: float
    content: str | None
    outcome: str = "unknown"
    stored_at: float = float("inf")


class _Topic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: dict[str, _Sent] = {}
        self.place_of: dict[str, str] = {}
        self.record_at: dict[str, str] = {}
        self.readers: dict[str, _Reader] = {}


@dataclass(slots=True)
class _Reader:
    """What one subscription has got, since it was moved."""

    ordered: bool = True
    moved_at: float = float("-inf")  # It has to get everything that was sent later.
    got: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)
    parked: set[str] = field(default_factory=set)
    last_of: dict[tuple[str, str], str] = field(default_factory=dict)  # (key, sender) → its last record so far.
    last_sent: dict[str, str] = field(default_factory=dict)  # Key → of what it got, the record that was sent last.
    newest: dict[str, int] = field(default_factory=dict)  # Key → the newest generation.


def judge(events: Sequence[Event], *, complete: bool) -> list[Violation]:
    """Return all violations. ``complete``: every subscription had the time to get everything, so rule 1 applies."""
    topics: dict[str, _Topic] = {}
    for event in events:
        _note(topics.setdefault(event["topic"], _Topic(event["topic"])), event)
    found: list[Violation] = []
    for event in sorted(events, key=lambda each: each["at"]):
        if "subscription" in event:
            topic = topics[event["topic"]]
            broken = _follow(topic, topic.readers[event["subscription"]], event)
            found += (Violation(rule, topic.name, event["subscription"], detail) for rule, detail in broken)
    return found + list(_lost(topics.values())) if complete else found


def _note(topic: _Topic, event: Event) -> None:
    """Remember what was sent, and who reads."""
    if event["event"] == "send":
        number, content = len(topic.sent), event.get("content")
        topic.sent[event["record"]] = _Sent(event["key"], event["sender"], number, event["at"], content)
    elif event["event"] == "outcome" and event["record"] in topic.sent:
        sent = topic.sent[event["record"]]
        sent.outcome = event["outcome"]
        sent.stored_at = event["at"] if sent.outcome == "stored" else sent.stored_at
    elif "subscription" in event:
        reader = topic.readers.setdefault(event["subscription"], _Reader())
        reader.ordered = reader.ordered and event.get("ordered", True)


def _follow(topic: _Topic, reader: _Reader, event: Event) -> Iterable[tuple[str, str]]:
    """Apply an event of a subscription; yield the rules that it breaks."""
    match event["event"]:
        case "delivery":
            yield from _delivered(topic, reader, event)
        case "acknowledged":
            reader.acknowledged.add(event["record"])
        case "failed":
            reader.failures[event["record"]] += 1
        case "parked":
            reader.parked.add(event["key"])
        case "resumed":
            reader.parked.discard(event["key"])
        case "seek":
            topic.readers[event["subscription"]] = _Reader(ordered=reader.ordered, moved_at=event["at"])


def _delivered(topic: _Topic, reader: _Reader, event: Event) -> Iterable[tuple[str, str]]:
    record, place = event["record"], event.get("place")
    sent = topic.sent.get(record)
    if sent is None:
        if topic.sent:
            yield "never sent", f"{record} was delivered"
        return
    if sent.outcome == "not stored":
        yield "stored despite failure", f"{record} was delivered, and its sender learned that it is not stored"
    if sent.content and (content := event.get("content")) and content != sent.content:
        yield "changed", f"{record} was sent with the content {sent.content}, and delivered with {content}"
    if place is not None:
        if (known := topic.place_of.setdefault(record, place)) != place:
            yield "stored twice", f"{record} is at {known} and at {place}"
        if (other := topic.record_at.setdefault(place, record)) != record:
            yield "stored twice", f"{place} has {other} and {record}"
    if record in reader.acknowledged:
        yield "repeated", f"{record} was delivered after its acknowledgement was stored"
    if (failures := reader.failures[record]) >= event.get("count", failures + 1):
        yield "count", f"delivery {event['count']} of {record} came after {failures} failures"
    if reader.ordered:
        if sent.key in reader.parked:
            yield "parked", f"{record} of the parked key {sent.key} was delivered"
        if (generation := event.get("generation", 0)) < (newest := reader.newest.get(sent.key, generation)):
            yield "two holders", f"{record} was delivered at generation {generation}, after one of its key at {newest}"
        reader.newest[sent.key] = max(generation, newest)
        if record not in reader.got:
            yield from _first_delivery(topic, reader, record, sent)
    reader.got.add(record)


def _first_delivery(topic: _Topic, reader: _Reader, record: str, sent: _Sent) -> Iterable[tuple[str, str]]:
    before = reader.last_of.setdefault((sent.key, sent.sender), record)
    if sent.number < topic.sent[before].number:
        yield "out of order", f"{record} of key {sent.key} came after {before}, which {sent.sender} sent later"
    reader.last_of[sent.key, sent.sender] = max(before, record, key=lambda each: topic.sent[each].number)
    last = reader.last_sent.setdefault(sent.key, record)
    if sent.stored_at < topic.sent[last].at:
        yield "out of order", f"{record} of key {sent.key} came after {last}, which was sent once it was stored"
    reader.last_sent[sent.key] = max(last, record, key=lambda each: topic.sent[each].at)


def _lost(topics: Iterable[_Topic]) -> Iterable[Violation]:
    for topic in topics:
        stored = [(record, sent.at) for record, sent in topic.sent.items() if sent.outcome == "stored"]
        for name, reader in topic.readers.items():
            missing = [record for record, at in stored if record not in reader.got and at > reader.moved_at]
            yield from (Violation("lost", topic.name, name, f"{each} was not delivered") for each in missing)
        if stored and not topic.readers:
            yield Violation("lost", topic.name, "", f"the history has no subscription that got {stored[0][0]}")
