"""Posts the events of the election service to the shards that they concern. It decides nothing."""

import asyncio
from collections.abc import Callable, Sequence

from controller.leader.shard_controller import ShardController
from controller.leadership.election import Connected, ElectionEvent, HolderChanged, LockEvent, Suspended
from controller.leadership.policy.shard_leaders import ShardLeaders
from controller.leadership.policy.transitions import Event


class ElectionEvents:
    def __init__(
        self, controllers: Callable[[], Sequence[ShardController]], leaders: ShardLeaders, patience_seconds: float
    ) -> None:
        """Ignore a loss of contact that lasts less than ``patience_seconds``."""
        self._controllers = controllers
        self._leaders = leaders
        self._patience_seconds = patience_seconds
        self._suspended: asyncio.TimerHandle | None = None

    def handle(self, event: ElectionEvent) -> None:
        match event:
            case LockEvent(shard, change):
                self._controllers()[shard].post(change)
            case HolderChanged(shard, instance):
                self._leaders.lock_held(shard, instance)
            case Suspended():
                # Leaders yield once a contender may hold their lock.
                if self._suspended is None:
                    loop = asyncio.get_running_loop()
                    self._suspended = loop.call_later(self._patience_seconds, self._post_to_all, Event.CONTACT_LOST)
            case Connected():
                if self._suspended is not None:
                    self._suspended.cancel()
                    self._suspended = None
                self._post_to_all(Event.CONTACT_REGAINED)

    def _post_to_all(self, event: Event) -> None:
        for controller in self._controllers():
            controller.post(event)
