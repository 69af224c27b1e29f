"""What a leader needs from its daemon: settings, connections and clocks, in one value."""

import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from controller.access.control import AccessControl
from controller.context.step_driver import TurnBudget
from controller.settings.sections import IngestSettings, RetentionSettings, ScalingSettings
from coordinator.context import CoordinatorSettings
from drain.protocol import BacklogRequest, BacklogResponse, DrainedResponse, DrainQuery
from headgate.ledger.chunk import RecordColumns
from headgate.ledger.ledger import Ledger
from headgate.model.layout import ShardMap
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from headgate.transport.port import Transport
from metrics import events
from web.api.overview import Overview

DrainedSource = Callable[[DrainQuery], Awaitable[DrainedResponse]]
"""Returns what is drained according to the stored ledger. An exception means "not yet"."""
BacklogSource = Callable[[BacklogRequest], Awaitable[BacklogResponse]]
"""Returns Spark's count of a shard; raises DrainCheckError."""
MakeOverview = Callable[[], Awaitable[Overview]]
DeleteData = Callable[[int, int, Collection[int]], Awaitable[int]]
"""(shard, topic id, segments) → number of deleted objects. Idempotent. Raises the errors of a
`Store`, or LedgerError."""


class Operations(Protocol):
    """What a daemon can do for an operator. All return why it was not done, None if it was."""

    async def transfer(self, shard: int, daemon: str, token: str) -> str | None:
        """Transfer a shard that this daemon leads; to itself: keep it.

        A transfer that has failed for the command with this token is not tried again: the lock may have come back.
        """

    async def set_maintenance(self, daemon: str, *, on: bool, token: str) -> str | None:
        """Begin or end the maintenance of a daemon, unless a command with this token has done it before."""

    async def raise_level(self, level: int) -> str | None:
        """Raise the cluster's feature level, if every daemon supports the new one. One that is reached stays."""

    async def set_shards(self, shards: int, before: int) -> str | None:
        """Give the cluster ``shards`` in place of ``before``, unless that was done before."""


OpenSession = Callable[[str, Callable[[ArrivedMessage], None], ReadingWindow], MqttPersistentSession]
"""(name, handler of the messages of a device, the shard's window) → the session under this name, before entry. The
newest client that opens it takes it over."""
OnRecords: TypeAlias = Callable[[RecordColumns], None]
OnDurable: TypeAlias = Callable[[int, bytes], None]
TraceCommits: TypeAlias = Callable[[int, OnRecords, OnDurable], tuple[OnRecords, OnDurable]]
"""(shard, callbacks of `GroupCommit`): returns callbacks that make spans, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContext:
    """Made when a term starts, with the settings of that moment."""

    cluster: str
    instance: str
    """The daemon's name; refusals and announcements carry it."""
    ledger: Ledger
    ledger_id: bytes
    """The id of that ledger. What this leader sends names it, and what it is sent has to."""
    transport: Transport
    access: AccessControl
    ingest: IngestSettings
    subscriptions: CoordinatorSettings
    scaling: ScalingSettings
    retention: RetentionSettings
    delete_data: DeleteData
    observer: events.Observer
    overview: MakeOverview
    operations: Operations
    now_ms: Callable[[], int]
    rng: random.Random = field(default_factory=random.Random)
    new_producer_id: Callable[[], int]
    """Draws 63 unpredictable bits."""
    drained_source: DrainedSource
    drain_problem: Callable[[], str | None] = lambda: None
    """Returns why the drain checker does not answer at present, for people; None: it does."""
    open_session: OpenSession | None = None
    """None: records of MQTT devices are not stored."""
    trim_delay_seconds: float | None = None
    """How long compacted chunks are kept; None: they are kept forever."""
    trim_interval_seconds: float = 30.0
    prune_interval_seconds: float = 10.0
    """Between two rounds. Retention times are hours and days."""
    turn_budget: TurnBudget | None = None
    """Shared by all leaders on one event loop; None: there is one."""
    backlog_source: BacklogSource | None = None
    """None: the leader counts backlogs."""
    backlog_interval_seconds: float = 15.0
    feature_level: Callable[[], int]
    """Returns the cluster's level as the daemon knows it; 0: it does not."""
    shards: Callable[[], ShardMap] = lambda: ShardMap((1,))
    """Returns the shards that the daemon knows of; by default a cluster that has one."""
    trace_commits: TraceCommits | None = None
    """None: commits have no spans."""
