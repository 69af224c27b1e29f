"""What the controller of a shard needs from its daemon, in one value."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controller.leader.leader import ShardLeader
from controller.leader.standby_memory import StandbyMemory
from controller.leadership.election import Elections
from headgate.ledger.ledger import Ledger
from headgate.model.hashing import ShardMap
from headgate.transport.port import Transport
from metrics import events
from shard.state.shard_state import ShardState
from shard.steps import TakeSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContext:
    """Made when a daemon joins its cluster, for each shard."""

    ledger: Ledger
    shards: Callable[[], ShardMap]
    """Returns the shards that the daemon knows of."""
    found_shards: Callable[[ShardMap], None]
    """Gets a list that the ledger has and the daemon does not know."""
    cluster: str
    instance: str
    elections: Elections
    transport: Transport
    new_leader: Callable[[ShardState, Callable[[], bool]], ShardLeader]
    """Gets a state with its term chunk, and whether to yield to a contender."""
    standby: StandbyMemory
    unready: Callable[[], str | None]
    """Returns why this daemon could not lead; None: it could."""
    observer: events.Observer
    now_ms: Callable[[], int]
    new_term_id: Callable[[], int]
    require_ledger: Callable[[], Awaitable[None]]
    """Raises unless the ledger is that of the cluster."""
    take_steps: TakeSteps
    """Decodes a snapshot. All shards of a daemon share it."""
