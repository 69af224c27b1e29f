"""The pages of the whole cluster: the overview, all topics, and all subscriptions. Pure."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlencode

from headgate.model.text import listed
from web.api.documents import ClusterDocument, DaemonDocument, SubscriptionPage, TopicPage, TopicSummary
from web.api.overview import Overview, ordered_topics
from web.api.query import Query, subscription_page, topic_page
from web.page.charts import charts
from web.page.markup import (
    UNKNOWN,
    Column,
    Html,
    badge,
    blocked_badge,
    blocked_tile,
    count,
    element,
    link,
    part,
    plural,
    rate,
    size,
    table,
    tiles,
)
from web.page.shell import Page, sources
from web.page.topics import subscription_table

BUSIEST: Final = 50
LISTED_ROWS: Final = 100
BAR_WIDTH: Final = 60
ALERTS: Final = {
    "broker": "HeadgateBrokerUnreachable",
    "cluster": "HeadgateNoLeader",
    "daemon": "HeadgateDown",
    "drain": "HeadgateDrainDegraded",
    "ledger": "HeadgateLedgerUnreadable",
    "loop": "HeadgateLoopLag",
    "store": "HeadgateCommitsFailing",
    "zookeeper": "HeadgateZooKeeperUnreachable",
    "clock": "HeadgateClockWrong",
    "descriptors": "HeadgateDescriptorsShort",
}
"""Component → the entry of the runbook that says what to do."""


def overview_page(overview: Overview, runbook_url: str | None) -> Page:
    """Return the overview: totals, what is degraded, rates, the busiest topics, the daemons."""
    cluster = overview.cluster
    return Page(
        title="Overview",
        as_of_ms=cluster.as_of_ms,
        actions=("create-topic", "transfer", "maintenance"),
        parts={
            "totals": part("totals", _totals(cluster), element("p", link("Events", "events"))),
            "problems": part("problems", _problems(cluster, overview.daemons, runbook_url), heading="Health"),
            "rates": charts(cluster.history),
            "topics": part("topics", *_busiest(overview.topics), heading="Topics by activity"),
            "daemons": part("daemons", _daemons(overview.daemons), heading="Daemons and shards"),
            "sources": sources(
                ("all values of this page", "/api/v1/cluster", "headgate_shard_is_leader", "headgate topic list"),
                ("backlog", "/api/v1/subscriptions", "headgate_backlog_records", "headgate backlog"),
                ("blocked", "/api/v1/subscriptions", "headgate_segments_blocked", "headgate explain TOPIC NAME"),
            ),
        },
    )


def listing_page(kind: str, overview: Overview, query: Query) -> Page:
    """Return a page of the ``topics`` or ``subscriptions`` that ``query`` asks for, by name."""
    as_of_ms, rows = overview.cluster.as_of_ms, element("p", f"There are no such {kind}.")
    page: TopicPage | SubscriptionPage
    if kind == "topics":
        page = topic_page(overview.topics, query, as_of_ms)
        rows = _topic_table("Topics by name", page.topics) if page.topics else rows
    else:
        page = subscription_page(overview.subscriptions, query, as_of_ms)
        found = page.subscriptions
        rows = subscription_table("Subscriptions by name", found, of_topic=False) if found else rows
    wanted = {"contains": query.contains} if query.contains else {}
    following = first = None
    if page.next is not None:
        url = f"/{kind}?{urlencode(wanted | {'after': page.next})}"
        following = element("p", element("a", "Next page", href=url, rel="next"))
    if query.after:
        first = element("p", element("a", "First page", href=f"/{kind}?{urlencode(wanted)}"))
    return Page(
        title=f"All {kind}",
        as_of_ms=as_of_ms,
        crumbs=((f"All {kind}", (kind,)),),
        contains=query.contains,
        parts={kind: part(kind, rows, first, following)},
    )


def _totals(cluster: ClusterDocument) -> Html:
    totals = cluster.totals
    sealed = f"{count(totals.sealed_segments)} sealed, {plural(totals.topics, 'topic')}"
    gone = f"in {plural(totals.subscriptions, 'subscription')}"
    if totals.disconnected_consumers:
        gone = f"{count(totals.disconnected_consumers)} disconnected"
    return tiles(
        ("Stored", rate(totals.stored_per_second), "records, mean of 30 s"),
        ("Acknowledged", rate(totals.acknowledged_per_second), "all subscriptions, by Spark"),
        ("Backlog", count(totals.backlog_records), "records, all subscriptions"),
        blocked_tile(totals.blocked_segments, totals.blocked_since_ms, cluster.as_of_ms),
        ("Segments", f"{count(totals.active_segments)} active", sealed),
        ("Consumers", count(totals.connected_consumers), gone),
    )


def _problems(cluster: ClusterDocument, daemons: Iterable[DaemonDocument], runbook_url: str | None) -> Html:
    urls = {each.daemon: each.url for each in daemons}
    leaderless = [str(each.shard) for each in cluster.shards if each.daemon is None]
    items = [
        element(
            "li",
            badge(each.state),
            " ",
            element("strong", each.component),
            " of ",
            _daemon_link(each.daemon, urls.get(each.daemon)),
            f": {each.reason} ",
            _runbook(each.component, runbook_url),
        )
        for each in cluster.degraded
    ]
    if leaderless:
        shards = f"no known leader of shards {listed(leaderless)}: their topics are missing on this page "
        items.insert(0, element("li", badge("failed"), " ", shards))
    if not items:
        return element("p", badge("ok"), f" All parts of {plural(cluster.totals.daemons, 'daemon')} work.")
    return element("ul", *items, class_="problems")


def _runbook(component: str, url: str | None) -> Html:
    alert = ALERTS[component]
    text = f"runbook: {alert}"
    return element("small", text) if url is None else element("a", text, href=f"{url}#{alert.lower()}")


def _busiest(topics: Sequence[TopicSummary]) -> Iterable[Html]:
    if not topics:
        yield element("p", "No topics yet. Create one: ", element("code", "headgate topic create orders --segments 4"))
        return
    shown = ordered_topics(topics, "activity")[:BUSIEST]
    yield _topic_table("Topics, the busiest first", shown)
    rest = len(topics) - len(shown)
    yield element("p", link("All topics by name", "topics"), f", {count(rest)} more than here" if rest else None)


def _topic_table(caption: str, topics: Sequence[TopicSummary]) -> Html:
    highest = max((each.stored_per_second or 0.0 for each in topics), default=0.0)
    columns: tuple[Column[TopicSummary], ...] = (
        Column("topic", lambda each: link(each.topic, "topics", each.topic)),
        Column("stored", lambda each: "external" if each.external else rate(each.stored_per_second), number=True),
        Column("activity", lambda each: _bar(each.stored_per_second or 0.0, highest), minor=True),
        Column("backlog", lambda each: count(each.backlog_records) if each.subscriptions else UNKNOWN, number=True),
        Column("blocked", lambda each: blocked_badge(each.blocked_segments), number=True),
        Column("segments", _segments, number=True),
        Column("consumers", lambda each: count(each.connected_consumers), number=True, minor=True),
        Column("subscriptions", lambda each: count(each.subscriptions), number=True, minor=True),
        Column("records", lambda each: count(each.records), number=True, minor=True),
        Column("size", lambda each: size(each.size_bytes), number=True, minor=True),
        Column("leader", lambda each: each.daemon, minor=True),
    )
    return table(caption, columns, topics)


def _segments(topic: TopicSummary) -> str:
    sealed = f" + {count(topic.sealed_segments)} sealed" if topic.sealed_segments else ""
    return f"{count(topic.active_segments)}{sealed}"


def _bar(value: float, highest: float) -> Html:
    width = BAR_WIDTH * value / highest if highest else 0.0
    return element(
        "svg",
        element("rect", width=f"{width:.1f}", height=8, rx=2),
        class_="bar",
        viewBox=f"0 0 {BAR_WIDTH} 8",
        width=BAR_WIDTH,
        height=8,
        aria_hidden="true",
    )


def _daemons(daemons: Iterable[DaemonDocument]) -> Html:
    columns: tuple[Column[DaemonDocument], ...] = (
        Column("daemon", lambda each: _daemon_link(each.daemon, each.url)),
        Column("state", lambda each: badge(each.state)),
        Column("leads shards", _led),
        Column("drain checks", partial(_component, "drain")),
        Column("ZooKeeper", partial(_component, "zookeeper"), minor=True),
        Column("broker", partial(_component, "broker"), minor=True),
        Column("store", partial(_component, "store"), minor=True),
        Column("version", lambda each: each.version or "?", minor=True),
    )
    return table("Daemons", columns, daemons)


def _component(name: str, daemon: DaemonDocument) -> Html | str:
    return next((badge(each.state) for each in daemon.components if each.component == name), "?")


def _led(daemon: DaemonDocument) -> str:
    led = [each for each in daemon.shards if each.role == "leading"]
    terms = ", ".join(f"{each.shard} (term {each.leader_epoch})" for each in led)
    spread = "" if daemon.spread in (None, "settled") else f"; {daemon.spread}"
    return (terms or ("?" if daemon.state == "unreachable" else "none, on standby")) + spread


def _daemon_link(daemon: str, url: str | None) -> Html:
    return element("span", daemon) if url is None else element("a", daemon, href=f"{url}/")
