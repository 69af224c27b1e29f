"""Posts the events of the election service to the shards that they concern, and keeps its state. It decides nothing."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import structlog

from controller.leader.shard_controller import ShardController
from controller.leadership import election
from controller.leadership.policy.shard_leaders import ShardLeaders
from controller.leadership.policy.transitions import Event
from metrics import events
from metrics.label_values import ZooKeeperState

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class ElectionEvents:
    controllers: Callable[[], Sequence[ShardController]]
    leaders: ShardLeaders
    patience_seconds: float
    """A loss of contact that lasts less is ignored."""
    _: KW_ONLY
    on_lost: Callable[[], None]
    """Called when the session has expired."""
    observer: events.Observer
    state: ZooKeeperState = "connecting"
    problem: str | None = None
    """What ZooKeeper refuses this daemon, and what to do."""
    _suspended: asyncio.TimerHandle | None = None

    def handle(self, event: election.ElectionEvent) -> None:
        match event:
            case election.LockEvent(shard, change):
                self.controllers()[shard].post(change)
            case election.HolderChanged(shard, instance):
                self.leaders.lock_held(shard, instance)
                for controller in self.controllers()[shard : shard + 1]:
                    controller.follower.lock_passed()
            case election.Suspended():
                self._set_state("suspended")
                # Leaders yield once a contender may hold their lock.
                if self._suspended is None:
                    loop = asyncio.get_running_loop()
                    self._suspended = loop.call_later(self.patience_seconds, self._post_to_all, Event.CONTACT_LOST)
            case election.Connected():
                self._set_state("connected")
                if self._suspended is not None:
                    self._suspended.cancel()
                    self._suspended = None
                self._post_to_all(Event.CONTACT_REGAINED)
            case election.Lost():
                self._set_state("lost")
                self.on_lost()
            case election.Refused(problem):
                self.problem = problem
                self.observer.observe(events.ZooKeeperRefused(refused=problem is not None))
            case election.ForeignNodeFound():
                self.observer.observe(events.ForeignNodeFound())

    def _set_state(self, state: ZooKeeperState) -> None:
        if state != self.state:
            log.info("zookeeper.state", state=state)
        self.state = state
        self.observer.observe(events.ZooKeeperStateChanged(state=state))

    def _post_to_all(self, event: Event) -> None:
        for controller in self.controllers():
            controller.post(event)
