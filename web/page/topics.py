"""The pages of one topic and of one subscription. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headgate.model.identifiers import SegmentId
from headgate.model.text import listed
from headgate.views.cluster import SubscriptionSummary
from headgate.views.explanations import BlockingSegment
from headgate.views.subscriptions import ConsumerInfo, SegmentAssignment
from headgate.views.topics import SegmentInfo
from web.api.documents import SubscriptionDocument, TopicDocument
from web.page.charts import charts
from web.page.drawing import MAX_DRAWN_SEGMENTS, Box, bucket_bars, drawing
from web.page.markup import (
    UNKNOWN,
    Column,
    Html,
    badge,
    blocked_badge,
    blocked_tile,
    count,
    duration,
    element,
    link,
    markup,
    part,
    plural,
    rate,
    size,
    table,
    tiles,
)
from web.page.shell import Page, sources

MAX_ROWS: Final = 200
"""Rows of a table of segments or consumers; the API has all of them."""
LEGEND: Final = {
    "active": "active: accepts records",
    "waiting": "readable, but no consumer holds it",
    "draining": "sealed and draining",
    "blocked": "blocked: waits for its ancestors",
    "drained": "drained",
}
TOPIC_LEGEND: Final = {"active": "active: accepts records", "sealed": "sealed"}


def topic_page(document: TopicDocument) -> Page:
    topic, summary = document.topic, document.summary
    name, path = topic.topic, f"/api/v1/topics/{topic.topic}"
    listed = f"/api/v1/subscriptions?topic={name}"
    sealed = f"{count(summary.sealed_segments)} sealed, layout epoch {topic.layout_epoch}"
    boxes = [_topic_box(each, document.as_of_ms) for each in topic.segments]
    external = None
    if topic.external is not None:
        where = topic.external.source or "an unnamed source"
        external = f"External: its records are stored in {where}, and headgate coordinates the readers."
    return Page(
        title=f"Topic {name}",
        as_of_ms=document.as_of_ms,
        crumbs=((name, ("topics", name)),),
        actions=("split", "merge", "create-subscription", "delete-topic"),
        acts_on={"topic": name, "of": f"{topic.topic_id}"},
        parts={
            "totals": part(
                "totals",
                tiles(
                    ("Stored", rate(summary.stored_per_second), "records, mean of 30 s"),
                    ("Records", count(summary.records), size(summary.size_bytes)),
                    ("Segments", f"{count(summary.active_segments)} active", sealed),
                    ("Backlog", count(summary.backlog_records), "records, all subscriptions"),
                    ("Blocked", count(summary.blocked_segments), "segments, all subscriptions"),
                    ("Leader", document.daemon, f"shard {topic.shard}"),
                ),
                element("p", link("Newest records", "topics", name, "records") if external is None else external),
                element("p", element("a", "Events", href=f"/events?topic={name}")),
            ),
            "rates": charts(document.history),
            "subscriptions": part("subscriptions", _subscriptions(document.subscriptions), heading="Subscriptions"),
            "layout": part(
                "layout",
                drawing(boxes, document.as_of_ms, f"Segments of topic {name} over key hashes and time"),
                _legend(TOPIC_LEGEND),
                _not_drawn(len(boxes)),
                heading="Segments over key hashes and time",
            ),
            "sources": sources(
                ("this topic", path, "headgate_records_stored_total", f"headgate topic describe {name}"),
                ("backlog", listed, "headgate_backlog_records", f"headgate backlog {name}"),
            ),
        },
    )


def _not_drawn(segments: int) -> Html | None:
    missing = segments - MAX_DRAWN_SEGMENTS
    return None if missing <= 0 else element("p", f"{count(missing)} older segments are not drawn; the API lists all.")


def _topic_box(segment: SegmentInfo, now_ms: int) -> Box:
    records = count(segment.next_offset) + " records" if segment.label is None else f"source segment {segment.label}"
    age = duration((now_ms - segment.created_at_ms) / 1000)
    return Box(
        segment=segment,
        status=segment.state,
        lines=(f"{segment.segment} · {records}", size(segment.size_bytes)),
        title=f"segment {segment.segment}, {_hashes(segment)}, {segment.state}, {records}, created {age} ago",
    )


def _hashes(segment: SegmentInfo) -> str:
    return f"hashes {segment.first_hash:04x}-{segment.last_hash:04x}"


def _subscriptions(subscriptions: Sequence[SubscriptionSummary]) -> Html:
    if not subscriptions:
        return element("p", "No subscription yet. The first consumer of a subscription creates it.")
    return subscription_table("Subscriptions of the topic", subscriptions, of_topic=True)


def subscription_table(caption: str, subscriptions: Sequence[SubscriptionSummary], *, of_topic: bool) -> Html:
    """Return a row for each of ``subscriptions``. ``of_topic``: all are of the topic that the page shows."""
    topic: Column[SubscriptionSummary] = Column("topic", lambda each: link(each.topic, "topics", each.topic))
    columns: tuple[Column[SubscriptionSummary], ...] = (
        Column(
            "subscription",
            lambda each: link(each.subscription, "topics", each.topic, "subscriptions", each.subscription),
        ),
        *[topic] * (not of_topic),
        Column("type", lambda each: each.type or UNKNOWN),
        Column("backlog", _backlog, number=True),
        Column("acknowledged", lambda each: rate(each.acknowledged_per_second), number=True),
        Column("drained in", outlook, number=True),
        Column("blocked", lambda each: blocked_badge(each.blocked_segments), number=True),
        Column("draining", lambda each: count(each.draining_segments), number=True, minor=True),
        Column("consumers", _consumers_text, number=True, minor=True),
    )
    return table(caption, columns, subscriptions)


def _backlog(summary: SubscriptionSummary) -> str:
    return "not tracked" if summary.outlook == "not_tracked" else count(summary.backlog_records)


def _consumers_text(summary: SubscriptionSummary) -> str:
    gone = f" + {count(summary.disconnected_consumers)} gone" if summary.disconnected_consumers else ""
    return f"{count(summary.connected_consumers)}{gone}"


def outlook(summary: SubscriptionSummary) -> str:
    texts = {"empty": "now", "shrinking": duration(summary.drained_in_seconds), "never": "never"}
    return texts.get(summary.outlook, UNKNOWN)


def subscription_page(document: SubscriptionDocument) -> Page:
    found, now_ms = document.subscription, document.as_of_ms
    topic, name = found.topic, found.subscription
    path, has_dead = f"/api/v1/topics/{topic}/subscriptions/{name}", found.policy.dead_letter_topic
    dead = link("Dead letters", "topics", topic, "subscriptions", name, "dead-letters") if has_dead else None
    return Page(
        title=f"Subscription {name} of {topic}",
        heading=f"Subscription {name}",
        as_of_ms=now_ms,
        crumbs=((topic, ("topics", topic)), (name, ("topics", topic, "subscriptions", name))),
        actions=("seek", "evict", "resume", "delete-subscription"),
        acts_on={"topic": topic, "subscription": name, "of": f"{found.subscription_id}"},
        parts={
            "totals": part("totals", _totals(document), dead and element("p", dead)),
            "waiting": part("waiting", _waiting(document), heading="What waits"),
            "layout": part("layout", *_layout(document), heading="Segments over key hashes and time"),
            "consumers": part("consumers", _consumers(document), bucket_bars(found.segments), heading="Consumers"),
            "rates": charts(document.history),
            "segments": part("segments", _segments(document)),
            "sources": sources(
                ("this subscription", path, "headgate_backlog_records", f"headgate backlog {topic} {name} --segments"),
                ("why", path, "headgate_segments_blocked", f"headgate explain {topic} {name}"),
            ),
        },
    )


def _totals(document: SubscriptionDocument) -> Html:
    summary, backlog, now_ms = document.summary, document.backlog, document.as_of_ms
    oldest = None if summary.oldest_ms is None else (now_ms - summary.oldest_ms) / 1000
    counted = "Spark has not counted"
    if backlog.counted_by == "spark":
        counted = f"Spark counted {duration(max(0, now_ms - backlog.as_of_ms) / 1000)} ago"
    found, is_queue = document.subscription, summary.type == "QUEUE"
    dropped, parked, dead = found.dropped_records, found.parked_keys, count(found.dead)
    return tiles(
        ("Type", summary.type or "unknown", f"order {found.order}, balanced by {found.balance}"),
        (
            "Backlog",
            _backlog(summary),
            ("records" if oldest is None else f"records, the oldest {duration(oldest)} old")
            + (f"; {count(dropped)} dropped by retention" if dropped else "")
            + (f"; {count(parked)} {'keys' if parked > 1 else 'key'} parked" if parked else ""),
        ),
        *[("Redelivery", count(found.failed), f"failed records; {dead} wait for the dead-letter topic")] * is_queue,
        ("Stored", rate(summary.stored_per_second), counted),
        ("Acknowledged", rate(summary.acknowledged_per_second), ""),
        ("Drained in", outlook(summary), "at these rates"),
        blocked_tile(summary.blocked_segments, summary.blocked_since_ms, now_ms),
    )


def _waiting(document: SubscriptionDocument) -> Html:
    """Return which segments are blocked, by what, and for how long."""
    found, unknown = document.explanation, document.summary.unknown_reason
    reason = element("p", badge("degraded"), f" The backlog is not fully known: {unknown}.") if unknown else None
    summary = element("p", " ".join(found.summary[1:]))
    if not found.segments:
        return element("div", element("p", badge("ok"), " No segment is blocked."), summary, reason)
    alike: dict[tuple[SegmentId, ...], list[SegmentId]] = {}
    for each in document.subscription.segments:
        alike.setdefault(each.blocked_by, []).append(each.segment)
    items = []
    for example in found.segments[:MAX_ROWS]:
        ancestors = tuple(each.segment for each in example.blocked_by)
        segments = alike.get(ancestors, [example.segment])
        waits = f"{_listed(segments)} wait{'s' if len(segments) == 1 else ''} for {_listed(ancestors)}"
        items.append(element("li", badge("blocked"), f" {waits}. ", " ".join(example.sentences[1:6])))
    return element("div", element("ul", *items, class_="problems"), summary, reason)


def _listed(segments: Sequence[int]) -> str:
    return f"segment{'' if len(segments) == 1 else 's'} {listed(segments)}"


def _holder(assignment: SegmentAssignment) -> str:
    names = {each.consumer for each in assignment.bucket_ranges if each.consumer}
    return f"{len(names)} consumers" if len(names) > 1 else assignment.consumer or next(iter(names), "")


def _layout(document: SubscriptionDocument) -> Iterable[Html | None]:
    assignments = {each.segment: each for each in document.subscription.segments}
    blocking = {each.segment: each for example in document.explanation.segments for each in example.blocked_by}
    boxes = [
        _box(each, assignments[each.segment], blocking.get(each.segment), document.as_of_ms)
        for each in document.layout
        if each.segment in assignments
    ]
    open_boxes = [each for each in boxes if each.status != "drained"]
    name = f"Segments of subscription {document.subscription.subscription} over key hashes and time"
    yield drawing(open_boxes, document.as_of_ms, name)
    yield _legend(LEGEND)
    yield _not_drawn(len(open_boxes))
    drained = len(boxes) - len(open_boxes)
    if drained:
        yield element(
            "details",
            element("summary", f"{plural(drained, 'drained segment')}, folded away"),
            drawing(boxes, document.as_of_ms, f"{name}, with drained ones"),
            id="drained",
        )


def _box(segment: SegmentInfo, progress: SegmentAssignment, blocking: BlockingSegment | None, now_ms: int) -> Box:
    active = segment.state == "active"
    holder = _holder(progress)
    status = "active" if active else "draining"
    if progress.status in {"blocked", "drained", "waiting"}:
        status = progress.status
    behind = ready = ""
    if progress.unacknowledged is not None:
        behind = f"{count(progress.unacknowledged, estimated=progress.estimated)} behind"
        if status == "draining" and progress.unacknowledged == 0:
            behind = "acknowledged, drain check due"
    if blocking is not None and blocking.expected_seconds:
        ready = f"about {duration(blocking.expected_seconds)} left"
    lines: tuple[str, ...]
    match status:
        case "blocked":
            lines = (f"{segment.segment} · waits for {', '.join(map(str, progress.blocked_by))}", behind)
        case "drained":
            lines = (f"{segment.segment} · drained",)
        case "waiting":
            lines = (f"{segment.segment} · no consumer", behind)
        case _:
            lines = (f"{segment.segment} · {holder or progress.status}", behind, ready)
    known = [
        f"segment {segment.segment}" + ("" if segment.label is None else f" ({segment.label})"),
        _hashes(segment),
        f"{segment.state}, {status}",
        f"read by {holder}" if holder else "",
        behind,
        ready,
        f"waits for {', '.join(map(str, progress.blocked_by))}" if progress.blocked_by else "",
        f"created {duration((now_ms - segment.created_at_ms) / 1000)} ago",
    ]
    records = segment.next_offset
    done = None if progress.unacknowledged is None or not records else 1 - progress.unacknowledged / records
    return Box(
        segment=segment,
        status=status,
        lines=lines,
        title=", ".join(filter(None, known)),
        acknowledged=None if done is None else max(0.0, done),
    )


def _legend(entries: Mapping[str, str]) -> Html:
    return element(
        "ul",
        *(element("li", _swatch(name), f" {text}") for name, text in entries.items()),
        class_="legend",
        aria_label="Legend",
    )


def _swatch(name: str) -> Html:
    box = element("rect", x=1, y=1, width=18, height=10, rx=2, class_="box")
    return element("svg", element("g", box, class_=name), viewBox="0 0 20 12", width=20, height=12, aria_hidden="true")


def _consumers(document: SubscriptionDocument) -> Html:
    consumers = document.subscription.consumers
    if not consumers:
        return element("p", "No consumer is registered.")
    now_ms = document.as_of_ms
    columns: tuple[Column[ConsumerInfo], ...] = (
        Column("consumer", lambda each: each.consumer),
        Column("state", lambda each: _state(each.disconnected_at_ms, now_ms)),
        Column("segments", _held),
        Column("last heard", lambda each: _ago(each.last_heard_age_ms), number=True),
        # The incarnation is the time at which the program started, by its own clock.
        Column("started", lambda each: _ago(max(0, now_ms - each.incarnation)), number=True, minor=True),
        Column("host", lambda each: each.host or UNKNOWN, minor=True),
        Column("version", lambda each: each.version or UNKNOWN, minor=True),
        Column("capacity", lambda each: f"{each.capacity} %", number=True, minor=True),
    )
    return _limited("div", table("Consumers of the subscription", columns, consumers[:MAX_ROWS]), len(consumers))


def _limited(name: str, rows: Html, total: int, **attributes: object) -> Html:
    """Return a table of at most `MAX_ROWS`, and how many are not in it."""
    more = total - MAX_ROWS
    return element(
        name, rows, element("p", f"{count(more)} more; the API lists all.") if more > 0 else None, **attributes
    )


def _state(gone_at_ms: int | None, now_ms: int) -> Html:
    if gone_at_ms is None:
        return badge("connected")
    return element("span", f"disconnected for {duration((now_ms - gone_at_ms) / 1000)}", class_="badge degraded")


def _held(consumer: ConsumerInfo) -> str:
    return listed(consumer.holdings) or f"none: {consumer.idle}"


def _ago(age_ms: int | None) -> str:
    return UNKNOWN if age_ms is None else f"{duration(age_ms / 1000)} ago"


def _segments(document: SubscriptionDocument) -> Html:
    """Return the values of the drawing as a table, for readers that see no drawing."""
    hashes = {each.segment: _hashes(each).removeprefix("hashes ") for each in document.layout}
    listed = sorted(document.subscription.segments, key=lambda each: (each.status == "drained", each.segment))
    columns: tuple[Column[SegmentAssignment], ...] = (
        Column("segment", lambda each: str(each.segment) if each.label is None else f"{each.segment} {each.label}"),
        Column("status", lambda each: badge(each.status)),
        Column("consumer", _holder),
        Column("backlog", lambda each: count(each.unacknowledged, estimated=each.estimated), number=True),
        Column("acknowledged to", lambda each: count(each.acknowledged_offset), number=True, minor=True),
        Column("end", lambda each: count(each.next_offset), number=True, minor=True),
        Column("blocked by", lambda each: ", ".join(map(str, each.blocked_by)), minor=True),
        Column("hashes", lambda each: hashes.get(each.segment, ""), minor=True),
    )
    rows = table("Segments of the subscription", columns, listed[:MAX_ROWS])
    return _limited(
        "details", markup(element("summary", "All segments as a table"), rows), len(listed), id="all-segments"
    )
