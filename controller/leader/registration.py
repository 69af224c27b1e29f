"""What one daemon registers about itself in ZooKeeper, after each change.

1. It is settled once its session has lasted for ``settle_seconds``. A new session begins again.
2. `controller.leadership.policy.shard_load` decides which loads it reports. All daemons weigh the shards by them.
3. It says whether it can do a leader's work, or what it lacks (`controller.leadership.policy.readiness`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from controller.leader.leader import ShardLeader
from controller.leadership.election import Registry
from controller.leadership.policy.instance_record import InstanceRecord, encode_record
from controller.leadership.policy.readiness import Contact, Servers, readiness
from controller.leadership.policy.shard_load import Arrivals, Loads, ShardLoads
from controller.settings.sections import SpreadSettings
from metrics import events

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class Registration:
    instance: str
    registry: Registry
    record: InstanceRecord
    """What is registered first; what changes is added."""
    settings: Callable[[], SpreadSettings]
    writes_fail: Callable[[], bool]
    observer: events.Observer
    leaving: bool = False
    _loads: ShardLoads = field(default_factory=ShardLoads)
    _live_since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    _servers: Servers = field(init=False)

    def __post_init__(self) -> None:
        now = self._live_since
        self._servers = Servers(Contact(works=False, since=now), Contact(works=True, since=now))

    async def register(self) -> None:
        """Register this daemon as live. Returns at once."""
        await self.registry.register_instance(self.instance, encode_record(self.record))

    def session_lost(self) -> None:
        """Begin to settle again (rule 1)."""
        self._live_since = asyncio.get_running_loop().time()

    def broker_changed(self, connected: bool) -> None:
        """Note a connection to the broker, or its loss (rule 3)."""
        self._servers.broker.note(works=connected, now=asyncio.get_running_loop().time())

    async def settle(self) -> None:
        """Register the loads, and whether this daemon is settled, leaving or able to lead, after a change."""
        now = asyncio.get_running_loop().time()
        self._servers.store.note(works=not self.writes_fail(), now=now)
        record = replace(
            self.record,
            settled=now - self._live_since >= self.settings().settle_seconds,
            leaving=self.leaving,
            readiness=readiness(self._servers, now),
            loads=dict(self._loads.reported),
        )
        if record != self.record:
            self.record = record
            await self.register()

    def weigh(self, led: Iterable[ShardLeader], holders: Mapping[int, str | None], others: Mapping[str, Loads]) -> None:
        """Measure the shards that this daemon leads, and decide which loads to report (rule 2)."""
        now = asyncio.get_running_loop().time()
        arrivals = {
            each.state.shard: Arrivals(each.leader_epoch, each.arrived_cost + each.devices.arrived_cost) for each in led
        }
        self._loads.measure(now, arrivals)
        before = self._loads.reported
        if self._loads.report(now, holders, others):
            log.info("spread.loads_reported", loads=self._loads.reported)
            for shard, load in self._loads.reported.items() - before.items():
                self.observer.observe(events.ShardLoadReported(shard=shard, load_bytes_per_second=load))
