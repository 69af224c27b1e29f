"""An election service in memory: sessions, queues, and clients that lose contact.

`FakeZooKeeper.elections` returns `controller.leadership.election.Elections`. It uses the loop's clock and takes random
numbers from ``rng``. It behaves like the real service:

* A client without contact receives `Suspended` after a while, and nothing more until it reconnects, not even the expiry
  of its session. After the reconnection it receives LOCK_LOST, `Lost`, then `Connected` with a new session.
* The service expires a session without contact for ``session_timeout_seconds``, and removes it from the queues.
* The first client with a user closes the nodes for all others. A client with another user, or none, is refused then, and
  tries again. Its places in queues count for nothing.
* While the whole ensemble is down no session expires. Its time limit starts again when the ensemble is back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from controller.leadership import election
from controller.leadership.policy.instance_record import MaintenanceRecord
from controller.leadership.policy.queue_order import SeenQueue
from controller.leadership.policy.transitions import Event

NOTICE_FRACTION = 0.4
"""A dead connection is detected after this part of the session timeout (measured with kazoo: 0.3 to 0.45)."""


class FakeZooKeeper:
    """The ensemble, and the network between it and its clients."""

    def __init__(self, rng: random.Random | None = None, *, session_timeout_seconds: float = 6.0) -> None:
        self.rng = rng or random.Random(0)
        self.session_timeout_seconds = session_timeout_seconds
        self.delay_seconds = (0.001, 0.01)
        self.running = True
        self.service_state = ServiceState()
        self._clients: dict[str, FakeElections] = {}
        self._partitioned: set[str] = set()
        self._every_client: list[FakeElections] = []

    def elections(self, instance: str, on_event: election.EventHandler, user: str | None = None) -> FakeElections:
        """Return a client, not yet entered."""
        client = FakeElections(self, instance, on_event, user)
        self._every_client.append(client)
        self._clients[instance] = client
        return client

    def first(self, shard: int) -> str | None:
        """Return the first instance in a shard's queue, as the service sees it."""
        queue = self.own_queue(shard)
        return queue[0].owner.instance if queue else None

    def own_queue(self, shard: int) -> list[Session]:
        """Return the places in a shard's queue that belong to the owner of the nodes."""
        state = self.service_state
        return [each for each in state.queues.get(shard, []) if each.user == state.owner]

    # Faults

    def expire_session(self, instance: str) -> None:
        """End a client's session now; a client in contact is notified now."""
        client = self._clients[instance]
        if client.session is not None:
            self.end(client.session)
            if self.can_reach(client):
                client.on_session_expired()

    def delete_queue_node(self, instance: str, shard: int) -> None:
        """Delete a client's queue node, as an operator might do manually."""
        session = self._clients[instance].session
        if session in self.service_state.queues.get(shard, []):
            self.service_state.queues[shard].remove(session)
            self.changed()

    def break_client(self, instance: str) -> None:
        """End a client as a bug in its library does: it never connects again."""
        client = self._clients[instance]
        self.partition(instance)
        client.failure.set_result(election.ElectionClientError("the client has ended"))

    def partition(self, instance: str) -> None:
        """End a client's contact; its session expires unless `heal` comes in time."""
        self._partitioned.add(instance)
        self._lose_contact(self._clients[instance])

    def heal(self, instance: str) -> None:
        """Restore a client's contact."""
        self._partitioned.discard(instance)
        self._regain_contact(self._clients[instance])

    def stop(self) -> None:
        """Stop the whole ensemble."""
        self.running = False
        for client in self._clients.values():
            self._lose_contact(client)
            if client.session is not None and client.session.expiry is not None:
                client.session.expiry.cancel()
                client.session.expiry = None

    def start(self) -> None:
        """Start it with its stored state; sessions without contact get a full timeout again."""
        self.running = True
        for client in self._every_client:
            if self.can_reach(client):
                self._regain_contact(client)
            elif client.session is not None:
                self._expire_later(client.session)

    # For the clients

    def can_reach(self, client: FakeElections) -> bool:
        return self.running and client.instance not in self._partitioned

    def later(self, act: Any, *arguments: Any) -> asyncio.TimerHandle:
        """Call ``act`` after the delay of one message."""
        return asyncio.get_running_loop().call_later(self.rng.uniform(*self.delay_seconds), act, *arguments)

    def end(self, session: Session) -> None:
        """End a session and remove it from the queues."""
        if not session.alive:
            return
        session.alive = False
        if session.expiry is not None:
            session.expiry.cancel()
        for queue in self.service_state.queues.values():
            if session in queue:
                queue.remove(session)
        for name in [name for name, (owner, _) in self.service_state.instances.items() if owner is session]:
            del self.service_state.instances[name]
        self.changed()

    def changed(self) -> None:
        """Let every client reconcile after the delay of one message."""
        for client in self._clients.values():
            self.later(client.reconcile)

    def _lose_contact(self, client: FakeElections) -> None:
        if client.session is None:
            return
        self._expire_later(client.session)
        client.suspend_later(self.session_timeout_seconds * NOTICE_FRACTION / client.clock_rate)

    def _expire_later(self, session: Session) -> None:
        if session.alive and session.expiry is None:
            loop = asyncio.get_running_loop()
            session.expiry = loop.call_later(self.session_timeout_seconds, self.end, session)

    def _regain_contact(self, client: FakeElections) -> None:
        if not client.open:
            # A closed client does not renew its session, which expires.
            if client.session is not None:
                self._expire_later(client.session)
            return
        if client.session is not None and client.session.expiry is not None and client.session.alive:
            client.session.expiry.cancel()
            client.session.expiry = None
        self.later(client.connect)


class FakeElections:
    """`controller.leadership.election.Elections` on a FakeZooKeeper."""

    def __init__(
        self, service: FakeZooKeeper, instance: str, on_event: election.EventHandler, user: str | None
    ) -> None:
        self.instance = instance
        self.user = user
        self.clock_rate = 1.0
        """How fast the clock of its machine runs, by which it notices a dead connection."""
        self._refused: election.Refused | None = None
        self._allowed = asyncio.Event()
        self.session: Session | None = None
        self._service = service
        self._on_event = on_event
        self.open = False
        self.failure: asyncio.Future[election.ElectionClientError] = asyncio.get_running_loop().create_future()
        self._in_contact = asyncio.Event()
        self._wanted: set[int] = set()
        self._leaving: set[int] = set()
        self._first: set[int] = set()
        self._holders: dict[int, str] = {}
        self._seen: dict[int, SeenQueue] = {}
        self._wanted_successors: dict[int, str] = {}
        self._nominations: dict[int, Nomination] = {}
        """Those that this client has written and not seen confirmed."""
        self._nominated: dict[int, Nomination] = {}
        """Those of this client that it has reported."""
        self._confirming: set[int] = set()
        self._keeps: set[int] = set()
        self._next = NextWishes()
        self._grants: dict[int, bool] = {}
        """Shard that it leaves to the nominated client → whether an operator wants it."""
        self.registered = asyncio.Event()
        self._registration: tuple[str, bytes] | None = None
        self._suspending: asyncio.TimerHandle | None = None

    def contend(self, shard: int) -> None:
        self._wanted.add(shard)
        self._service.later(self.reconcile)

    def withdraw(self, shard: int) -> None:
        self._wanted.discard(shard)
        self._leaving.add(shard)
        self._first.discard(shard)
        self._holders.pop(shard, None)
        self._seen.pop(shard, None)
        self._keeps.discard(shard)
        self._wanted_successors.pop(shard, None)
        self._nominations.pop(shard, None)
        self._next.end(shard)
        self._service.later(self.reconcile)

    def queue(self, shard: int) -> SeenQueue | None:
        return self._seen.get(shard)

    def nominate(self, shard: int, instance: str) -> None:
        self._wanted_successors.pop(shard, None)
        if instance:
            self._wanted_successors[shard] = instance
        self._nominations.pop(shard, None)
        self._service.later(self.reconcile)

    def confirm(self, shard: int) -> None:
        self._confirming.add(shard)
        self._service.later(self.reconcile)

    def place_next(self, shard: int, instance: str) -> None:
        self._next.want(shard, instance)
        self._service.later(self.reconcile)

    def keep(self, shard: int) -> None:
        self._keeps.add(shard)
        self._service.later(self.reconcile)

    def pass_on(self, shard: int, *, fixed: bool = False) -> None:
        self._grants[shard] = fixed
        self.withdraw(shard)

    def pass_over(self, shard: int, instance: str) -> None:
        self._service.later(self._pass_over, shard, instance)

    @property
    def registry(self) -> Self:
        return self

    async def register_instance(self, name: str, data: bytes) -> None:
        self._registration = (name, data)
        self._service.later(self.reconcile)

    async def instances(self) -> dict[str, bytes] | None:
        if not self._in_contact.is_set() or not self._service.can_reach(self) or not self._may_use_nodes():
            return None
        return {name: data for name, (_, data) in self._service.service_state.instances.items()}

    async def maintenance(self) -> frozenset[str] | None:
        if not self._in_contact.is_set() or not self._service.can_reach(self) or not self._may_use_nodes():
            return None
        return self._service.service_state.in_maintenance

    async def set_maintenance(self, name: str, *, on: bool, token: str, new: bool = True) -> bool:
        if not self._in_contact.is_set() or not self._service.can_reach(self) or not self._may_use_nodes():
            raise election.ElectionsUnreachableError("ZooKeeper has not confirmed it; try again")
        records = self._service.service_state.maintenance
        if not new and name not in records:
            return False
        records[name] = records.get(name, MaintenanceRecord()).after(token, on=on) or records[name]
        return True

    async def watch(self) -> NoReturn:
        raise await self.failure

    async def cluster_config(self, default: dict[str, Any] | None) -> dict[str, Any]:
        await self._round_trip()
        self._may_use_nodes()
        await self._allowed.wait()
        if self._service.service_state.config is None and default is not None:
            self._service.service_state.config = dict(default)
        return dict(self._service.service_state.config or {})

    async def config(self) -> dict[str, Any] | None:
        config = self._service.service_state.config
        if not self._in_contact.is_set() or not self._service.can_reach(self) or not self._may_use_nodes():
            return None
        return None if config is None else dict(config)

    async def clusters_on(self, _: str) -> list[str]:
        return list(self._service.service_state.sharing)

    async def change_config(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        if (config := await self.config()) is None:
            raise election.ElectionsUnreachableError("ZooKeeper has not confirmed it; try again")
        self._service.service_state.config = change(config) or config

    async def claim_ledger(self, ledger_id: str, **more: Any) -> str:
        await self._round_trip()
        self._may_use_nodes()
        await self._allowed.wait()
        config = self._service.service_state.config
        assert config is not None, "cluster_config comes first"
        if "ledger_id" not in config:
            config |= {"ledger_id": ledger_id, **more}
        return str(config["ledger_id"])

    async def __aenter__(self) -> Self:
        self.open = True
        self._service.later(self.connect)
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `Elections.__aexit__`. Without contact the session expires after its timeout."""
        if self._grants and self._in_contact.is_set():
            await asyncio.sleep(self._service.delay_seconds[1])  # `reconcile` runs meanwhile.
        self.open = False
        self._wanted.clear()
        self._first.clear()
        self._stop_suspending()
        if self.session is not None and self._service.can_reach(self):
            self._service.end(self.session)

    # For the service

    def connect(self) -> None:
        """Connect: with the old session if it exists, otherwise with a new one."""
        if not self.open or not self._service.can_reach(self):
            return
        self._stop_suspending()
        if self.session is not None and not self.session.alive:
            self.on_session_expired()
            return
        if self.session is None:
            self.session = Session(self, self.user)
        if not self._in_contact.is_set():
            self._in_contact.set()
            self._on_event(election.Connected())
        self.reconcile()

    def on_session_expired(self) -> None:
        """Report the end of the session, and get a new one."""
        if self.session is None or self.session.alive:
            return
        self.session = None
        self._in_contact.clear()
        for shard in sorted(self._first):
            self._on_event(election.LockEvent(shard, Event.LOCK_LOST))
        self._first.clear()
        self._grants.clear()
        self._on_event(election.Lost())
        self._service.later(self.connect)

    def suspend_later(self, seconds: float) -> None:
        """Report the lost contact after ``seconds``."""
        if self.open and self._suspending is None and self._in_contact.is_set():
            self._suspending = asyncio.get_running_loop().call_later(seconds, self._suspend)

    def reconcile(self) -> None:
        """Compare the actual with the wanted state, and report changes."""
        session = self.session
        if not self.open or session is None or not session.alive or not self._service.can_reach(self):
            return
        service_state = self._service.service_state
        if not self._may_use_nodes():
            return
        for shard in sorted(self._leaving):
            if session in (queue := service_state.queues.get(shard, [])):
                self._grant(shard, queue, session)
                queue.remove(session)
                self._service.changed()
        self._leaving.clear()
        self._grants.clear()
        for shard in sorted(self._wanted):
            self._reconcile_shard(shard, service_state.queues.setdefault(shard, []), session)
        if self._registration is not None:
            name, data = self._registration
            if service_state.instances.get(name, (session,))[0] is session:
                service_state.instances[name] = (session, data)
                self.registered.set()

    def _reconcile_shard(self, shard: int, queue: list[Session], session: Session) -> None:
        if session not in queue:
            if shard in self._first:
                self._first.discard(shard)
                self._on_event(election.LockEvent(shard, Event.LOCK_LOST))
            queue.append(session)
            self._service.changed()
        queue = self._service.own_queue(shard)
        if shard in self._first and queue[0] is not session:
            self._first.discard(shard)
            self._on_event(election.LockEvent(shard, Event.LOCK_LOST))
        if self._in_contact.is_set() and self._holders.get(shard) != (holder := queue[0].owner.instance):
            self._holders[shard] = holder
            self._on_event(election.HolderChanged(shard, holder))
        names = [each.owner.instance for each in queue]
        if shard in self._keeps and queue[0] is session and shard not in self._wanted_successors:
            self._keeps.discard(shard)
            if self._service.service_state.fixed.get(shard) is not session:
                self._service.service_state.fixed[shard] = session
                self._service.changed()
        fixed = self._service.service_state.fixed.get(shard) is queue[0]
        self._seen[shard] = SeenQueue(names[0], frozenset(names[1:]), fixed, next="".join(names[1:2]))
        if queue[0] is session and shard not in self._first and self._in_contact.is_set():
            self._first.add(shard)
            self._on_event(election.LockEvent(shard, Event.LOCK_ACQUIRED))
        if queue[0] is session:
            self._place_next(shard, queue)
            self._nominate(shard, queue, session)
        else:
            self._wanted_successors.pop(shard, None)
            self._nominations.pop(shard, None)
            self._next.end(shard)
            self._keeps.discard(shard)
            self._be_nominated(shard, session)

    def _pass_over(self, shard: int, instance: str) -> None:
        if self._in_contact.is_set() and self._service.can_reach(self) and self._service.first(shard) == instance:
            queue = self._service.service_state.queues[shard]
            for behind in self._service.own_queue(shard)[1:2]:
                queue.remove(behind)
                queue.insert(0, behind)
            self._service.changed()

    def _place_next(self, shard: int, queue: list[Session]) -> None:
        """Move the wanted client, or the one that is nominated meanwhile, behind this one."""
        if shard in self._nominations:
            found: Session | None = self._nominations[shard].successor
        elif shard in self._wanted_successors:
            found = place_of(self._wanted_successors[shard], queue)
        else:
            found = self._next.resolve(shard, queue)
        if found is not None and found in queue and found is not queue[1]:
            self._service.service_state.place_behind(shard, queue[0], found)
            self._service.changed()

    def _nominate(self, shard: int, queue: list[Session], session: Session) -> None:
        nominations = self._service.service_state.nominations
        wanted = self._wanted_successors.get(shard)
        if wanted is not None:
            found = place_of(wanted, queue)
            if found is not None:
                del self._wanted_successors[shard]
                self._nominations[shard] = nominations[shard] = Nomination(session, found)
                self._service.changed()
        elif (nomination := self._nominations.get(shard)) is not None:
            left = nomination.successor not in queue
            if left or nomination.confirmed:
                del self._nominations[shard]
                self._on_event(election.LockEvent(shard, Event.SUCCESSOR_LEFT if left else Event.SUCCESSOR_READY))

    def _be_nominated(self, shard: int, session: Session) -> None:
        nomination = self._service.service_state.nominations.get(shard)
        if nomination is None or nomination.successor is not session:
            return
        if self._nominated.get(shard) is not nomination:
            self._nominated[shard] = nomination
            self._confirming.discard(shard)
            self._on_event(election.LockEvent(shard, Event.NOMINATED))
        elif shard in self._confirming:
            self._confirming.discard(shard)
            nomination.confirmed = True
            self._service.changed()

    def _grant(self, shard: int, queue: list[Session], session: Session) -> None:
        """Make the nominated client the first one, if it is still in the queue."""
        nomination = self._service.service_state.nominations.get(shard)
        if shard not in self._grants or nomination is None or nomination.holder is not session:
            return
        if nomination.successor in queue:
            queue.remove(nomination.successor)
            queue.insert(0, nomination.successor)
            if self._grants[shard]:
                self._service.service_state.fixed[shard] = nomination.successor

    def _may_use_nodes(self) -> bool:
        """Whether the nodes are this client's, which closes open ones. Report a change."""
        state = self._service.service_state
        if state.owner is None and self.user is not None:
            state.owner = self.user
            self._service.changed()
        refused = (
            None if state.owner == self.user else election.Refused("ZooKeeper node /headgate is closed to this client")
        )
        if refused != self._refused:
            self._refused = refused
            self._on_event(refused or election.Refused(None))
            if refused is not None:
                self._allowed.clear()
        if refused is None:
            self._allowed.set()
        return refused is None

    def _suspend(self) -> None:
        self._suspending = None
        if self._in_contact.is_set():
            self._in_contact.clear()
            self._on_event(election.Suspended())

    def _stop_suspending(self) -> None:
        if self._suspending is not None:
            self._suspending.cancel()
            self._suspending = None

    async def _round_trip(self) -> None:
        while True:
            await self._in_contact.wait()
            await asyncio.sleep(self._service.rng.uniform(*self._service.delay_seconds))
            if self._service.can_reach(self):
                return
            await asyncio.sleep(self._service.session_timeout_seconds * NOTICE_FRACTION)


@dataclass(eq=False, slots=True)
class Session:
    owner: FakeElections
    user: str | None = None
    alive: bool = True
    expiry: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class Nomination:
    """What the holder of a shard has written about its successor."""

    holder: Session
    successor: Session
    confirmed: bool = False


@dataclass(slots=True)
class ServiceState:
    owner: str | None = None
    """The user whose nodes they are; None: they are open."""
    config: dict[str, Any] | None = None
    sharing: tuple[str, ...] = ()
    """Nodes of other clusters whose daemons use the same ledger."""
    queues: dict[int, list[Session]] = field(default_factory=dict)
    """The sessions in their order: one to which the lock was passed on is first."""
    nominations: dict[int, Nomination] = field(default_factory=dict)
    fixed: dict[int, Session] = field(default_factory=dict)
    """Shard → the session to which an operator had its lock passed on."""
    instances: dict[str, tuple[Session, bytes]] = field(default_factory=dict)
    maintenance: dict[str, MaintenanceRecord] = field(default_factory=dict)
    """One for each instance that has ever been in maintenance."""

    @property
    def in_maintenance(self) -> frozenset[str]:
        return frozenset(name for name, record in self.maintenance.items() if record.on)

    def place_behind(self, shard: int, first: Session, second: Session) -> None:
        """Move ``second`` behind ``first`` in a queue."""
        queue = self.queues[shard]
        queue.remove(second)
        queue.insert(queue.index(first) + 1, second)


@dataclass
class NextWishes:
    """Whom a client wants behind itself. A wish ends with the place of that client in the queue."""

    _wanted: dict[int, str] = field(default_factory=dict)
    """Shard → instance."""
    _placed: dict[int, Session] = field(default_factory=dict)
    """Shard → its place, once it was found."""

    def want(self, shard: int, instance: str) -> None:
        if self._wanted.get(shard) != instance:
            self._placed.pop(shard, None)
            self._wanted[shard] = instance

    def end(self, shard: int) -> None:
        self._wanted.pop(shard, None)
        self._placed.pop(shard, None)

    def resolve(self, shard: int, queue: list[Session]) -> Session | None:
        """Return the place of the wanted client, if there is one."""
        if shard in self._placed and self._placed[shard] not in queue:
            self.end(shard)
        if shard not in self._placed and shard in self._wanted:
            found = place_of(self._wanted[shard], queue)
            if found is None:
                return None
            self._placed[shard] = found
        return self._placed.get(shard)


def place_of(instance: str, queue: list[Session]) -> Session | None:
    """Return the first place of a client behind the holder of the lock."""
    return next((each for each in queue[1:] if each.owner.instance == instance), None)
