"""What a leader needs from its daemon: settings, connections and clocks, in one value."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from controller.access.control import AccessControl
from controller.backlog.service import BACKLOG_INTERVAL_SECONDS, BacklogSource
from controller.devices.session_port import OpenSession
from controller.leader.cluster_answers import MakeOverview
from controller.leader.drain_check import DrainChecker
from controller.leader.operator_commands import Operations
from controller.leader.step_driver import TurnBudget
from controller.retention.pruner import PRUNE_INTERVAL_SECONDS, DeleteData
from controller.retention.trimmer import TRIM_INTERVAL_SECONDS
from controller.settings.sections import IngestSettings, RetentionSettings, ScalingSettings
from coordinator.ports import CoordinatorSettings
from headgate.ledger.ledger import Ledger
from headgate.transport.port import Transport
from metrics import events


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContext:
    """Made when a term starts, with the settings of that moment."""

    cluster: str
    instance: str
    """The daemon's name; refusals and announcements carry it."""
    ledger: Ledger
    transport: Transport
    access: AccessControl
    ingest: IngestSettings
    subscriptions: CoordinatorSettings
    scaling: ScalingSettings
    retention: RetentionSettings
    delete_data: DeleteData
    observer: events.Observer
    now_ms: Callable[[], int]
    rng: random.Random
    new_producer_id: Callable[[], int]
    """Draws 63 unpredictable bits."""
    drain_checker: DrainChecker | None = None
    """None: segments are never reported as drained."""
    drain_problem: Callable[[], str | None] = lambda: None
    """Returns why the drain checker does not answer at present, for people; None: it does."""
    open_session: OpenSession | None = None
    """None: records of MQTT devices are not stored."""
    trim_delay_seconds: float | None = None
    """How long compacted chunks are kept; None: they are kept forever."""
    trim_interval_seconds: float = TRIM_INTERVAL_SECONDS
    prune_interval_seconds: float = PRUNE_INTERVAL_SECONDS
    turn_budget: TurnBudget | None = None
    """Shared by all leaders on one event loop; None: there is one."""
    backlog_source: BacklogSource | None = None
    """None: the leader counts backlogs."""
    backlog_interval_seconds: float = BACKLOG_INTERVAL_SECONDS
    operations: Operations | None = None
    """What the daemon does for operators; None: nothing."""
    overview: MakeOverview | None = None
    """Returns what all daemons know; None: this leader has no daemon to ask others."""
