"""The documents that only the HTTP API has, version 1. The others are values of headgate.views. Pure.

1. Names are stable, and units are their last part. A later version may add fields, and removes none.
2. None is unknown or not applicable, never 0. Times are milliseconds since 1970, by the clock of the
   daemon that is named beside them.
3. A summary costs its leader little; documents with segments are made for one topic or subscription.
"""

import msgspec

from headgate.model.headers import Origin
from headgate.model.text import Encoding
from headgate.views.cluster import ClusterInfo, DaemonInfo, SubscriptionSummary
from headgate.views.explanations import Explanation
from headgate.views.subscriptions import BacklogInfo, SubscriptionInfo
from headgate.views.topics import SegmentInfo, TopicInfo
from metrics.status import ShardStatus


class HistorySample(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Rates and backlog at one moment, by the leaders' own counts (web.api.history)."""

    at_ms: int
    stored_per_second: float | None
    acknowledged_per_second: float | None
    """Since the sample before it."""
    backlog_records: int | None


class DaemonDocument(DaemonInfo, frozen=True, kw_only=True):
    """A daemon, with its shards and its history."""

    shards: tuple[ShardStatus, ...] = ()
    history: tuple[HistorySample, ...] = ()
    """The traffic of all topics that it led, every 15 seconds, for half an hour."""


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in one line. The rate is the mean of half a minute, from the leader's own count."""

    topic: str
    topic_id: int
    shard: int
    daemon: str
    """The leader of its shard."""
    external: bool
    active_segments: int
    sealed_segments: int
    records: int | None
    """Stored so far in its segments; None for an external topic."""
    size_bytes: int | None
    stored_per_second: float | None
    subscriptions: int
    connected_consumers: int
    blocked_segments: int
    """Over all subscriptions."""
    backlog_records: int | None
    """Over all subscriptions that acknowledge; None: one is unknown."""


class DaemonPart(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon, and what it leads: topics by name, subscriptions by topic and name."""

    daemon: DaemonDocument
    topics: tuple[TopicSummary, ...] = ()
    subscriptions: tuple[SubscriptionSummary, ...] = ()


class DegradedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A component that is not ``ok`` at a daemon, or a daemon that did not answer (component ``daemon``)."""

    daemon: str
    component: str
    state: str
    reason: str


class ClusterDocument(ClusterInfo, frozen=True, kw_only=True):
    """The whole cluster in totals, and what is degraded. Daemons and subscriptions are documents of their own."""

    degraded: tuple[DegradedPart, ...] = ()
    history: tuple[HistorySample, ...] = ()
    """The sums over the daemons that answer."""


class Daemons(msgspec.Struct, frozen=True, kw_only=True):
    """All daemons that are registered in ZooKeeper."""

    as_of_ms: int
    daemons: tuple[DaemonDocument, ...]


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some topics. ``next`` is the ``after`` of the next page; None: this is the last one."""

    as_of_ms: int
    topics: tuple[TopicSummary, ...]
    next: str | None


class SubscriptionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some subscriptions. ``next`` is the ``after`` of the next page; None: this is the last one."""

    as_of_ms: int
    subscriptions: tuple[SubscriptionSummary, ...]
    next: str | None


class TopicDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One topic with its segments and subscriptions, by the leader of its shard."""

    as_of_ms: int
    daemon: str
    summary: TopicSummary
    topic: TopicInfo
    subscriptions: tuple[SubscriptionSummary, ...]
    history: tuple[HistorySample, ...] = ()
    """Empty unless it is one of the busiest 200 topics and subscriptions of the daemon."""


class SubscriptionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription with its segments and consumers, by the leader of its shard."""

    as_of_ms: int
    daemon: str
    summary: SubscriptionSummary
    subscription: SubscriptionInfo
    backlog: BacklogInfo
    layout: tuple[SegmentInfo, ...]
    explanation: Explanation
    """Why segments are blocked: of those that wait for the same ancestors, the first one."""
    history: tuple[HistorySample, ...] = ()
    """Empty unless it is one of the busiest 200 topics and subscriptions of the daemon."""


class RecordData(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a record: as text, or as base64 if they are no text; the first 4 096 of them."""

    text: str
    encoding: Encoding
    size_bytes: int
    """The size of all of them."""


class RecordDocument(msgspec.Struct, frozen=True):
    """A stored record."""

    segment: int
    offset: int
    timestamp_ms: int
    """As its producer set it."""
    key: RecordData
    value: RecordData
    headers: tuple[tuple[str, RecordData], ...]
    """Name and value of each."""


class RecordsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The newest stored records of a topic, the newest first."""

    as_of_ms: int
    topic: str
    records: tuple[RecordDocument, ...]
    complete: bool
    """False: reading took too long, or met a large object, so there may be more in older ones."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A record of a dead-letter topic."""

    segment: int
    offset: int
    key: RecordData
    origin: Origin


class DeadLettersDocument(msgspec.Struct, frozen=True):
    """The newest dead letters of a subscription that were neither sent back nor dropped, the newest first."""

    topic: str
    subscription: str
    dead_letter_topic: str
    letters: tuple[DeadLetter, ...]
    total: int
    complete: bool
    """False: reading took too long, or met a large object, so there are newer ones."""
    through: str
    """For the actions that send these and older ones back, or drop them. They leave newer ones alone."""


class ActionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What an action changed, or would change after a dry run; for people."""

    action: str
    dry_run: bool
    changes: tuple[str, ...]
    of: str = ""
    """The topic, subscription or consumer that was shown. An action with it is refused if the name has another one."""


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused, and what to do."""

    error: str


class ScaleDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one subscription that decide how many consumers are worth running, by the leader of its shard."""

    as_of_ms: int
    daemon: str
    usable_consumers: int
    """Open segments, neither blocked nor drained: so many consumers can each have one. Children of a split count once
    their ancestors are drained."""
    busy_consumers: int
    """Open segments with unacknowledged records, or with an unknown number of them; 0: nothing is to be read."""
    connected_consumers: int
    backlog_records: int | None


def scale_of(document: SubscriptionDocument) -> ScaleDocument:
    """Return how many consumers a subscription can use now: autoscalers such as KEDA read one of the numbers."""
    open_segments = [each for each in document.subscription.segments if each.status not in ("blocked", "drained")]
    return ScaleDocument(
        as_of_ms=document.as_of_ms,
        daemon=document.daemon,
        usable_consumers=len(open_segments),
        busy_consumers=sum(each.unacknowledged != 0 for each in open_segments),
        connected_consumers=document.summary.connected_consumers,
        backlog_records=document.summary.backlog_records,
    )
