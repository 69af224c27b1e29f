"""One real `ShardLeader` in memory, and a clock of the event loop's turns. No server, no disk.

The stall of a message is the longest turn of the loop while the leader handles it: decoding, deciding, applying,
encoding the chunk, and everything that follows in later turns. Between two turns the loop serves other clients.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, TypeVar

from controller.access.control import AccessControl
from controller.cluster.peers import Peers
from controller.cluster.status import ClusterStatus
from controller.context.leader_context import LeaderContext
from controller.leader.leader import ShardLeader
from controller.leadership.policy.feature_levels import LEVELS
from controller.settings.sections import IngestSettings, RetentionSettings, ScalingSettings
from coordinator.context import CoordinatorSettings
from drain.protocol import DrainedResponse, DrainQuery
from headgate.ledger.ledger import Ledger
from headgate.protocol import codec
from headgate.protocol.codec import MAX_MESSAGE_BYTES, PartCollector
from headgate.protocol.replies import AnyReplyBody, MessagePart, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import AnyRequestBody, Request
from headgate.storage.object_store import open_store
from headgate.transport.port import MAX_PAYLOAD_BYTES, MessageHandler
from metrics.events import Observer
from metrics.health import Health
from shard.access.rules import OPEN
from shard.state.ledger_time import TICK_INTERVAL_SECONDS
from shard.state.shard_state import ShardState

CLUSTER = "bench"
CLIENT_ID = "c"
CLIENT = codec.client_address(None, CLIENT_ID)
REPLY_TIMEOUT_SECONDS = 30.0
AT_MS = 1_700_000_000_000
INTERVAL_SECONDS = 1.0
"""Pause of the leader's slowest timers."""
SETTLE_SECONDS = TICK_INTERVAL_SECONDS + 0.01
"""Includes a tick of the leader."""
PROBE_SECONDS = 0.02
MAX_PROBE_TURNS = 3
"""Turns that the probe makes on a settled leader."""
SETTINGS = CoordinatorSettings(
    grace_seconds=3600,
    revoke_timeout_seconds=3600,
    heartbeat_interval_seconds=3600,
    poll_min_seconds=2,
    poll_max_seconds=900,
    poll_check_timeout_seconds=70,
)
HEALTH = Health(live=True, live_reason="", components=())
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest turn of a loop."""

    cpu_seconds: float
    wall_seconds: float
    """The turn that took longest by the wall clock; on a busy machine it need not be the same one."""

    def least(self, other: Stall) -> Stall:
        """Return the shorter times of two rounds."""
        return Stall(min(self.cpu_seconds, other.cpu_seconds), min(self.wall_seconds, other.wall_seconds))


class TurnClock(selectors.DefaultSelector):
    """Measures the longest turn, from one wait for events to the next, in processor time and in wall time."""

    def __init__(self) -> None:
        super().__init__()
        self._longest = Stall(0.0, 0.0)
        self._turns = 0
        self._began: tuple[float, float] | None = None

    def restart(self) -> None:
        """Forget all earlier turns, and the beginning of the running one."""
        self._longest, self._began = Stall(0.0, 0.0), (time.thread_time(), time.perf_counter())

    @property
    def longest(self) -> Stall:
        """The longest turns that have ended since `restart`."""
        return self._longest

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End the running turn, wait for events, and begin the next one."""
        if self._began is not None:
            cpu_seconds, wall_seconds = time.thread_time() - self._began[0], time.perf_counter() - self._began[1]
            self._longest = Stall(
                max(self._longest.cpu_seconds, cpu_seconds), max(self._longest.wall_seconds, wall_seconds)
            )
        ready = super().select(timeout)
        self._turns += 1
        self._began = time.thread_time(), time.perf_counter()
        return ready

    async def settled(self) -> None:
        """Return after a tick of the leader, once nothing that was left for later turns is still to be done."""
        await asyncio.sleep(SETTLE_SECONDS)
        while True:
            before = self._turns
            await asyncio.sleep(PROBE_SECONDS)
            if self._turns - before <= MAX_PROBE_TURNS:
                return


def run_timed(main: Coroutine[None, None, Result], clock: TurnClock) -> Result:
    """Run ``main`` on a loop whose turns ``clock`` measures."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock)) as runner:
        return runner.run(main)


class MemoryTransport:
    """Delivers what the benchmark sends, and counts what the leader publishes; see `Transport`."""

    connected = True
    unreachable_reason = None

    def __init__(self) -> None:
        self.published: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._handlers: dict[str, MessageHandler] = {}

    def on_connection(self, handler: object) -> None:
        """See `Transport.on_connection`; the connection never changes."""

    def on_refusal(self, handler: object) -> None:
        """See `Transport.on_refusal`; nothing is refused."""

    async def subscribe(self, topic_filter: str, handler: MessageHandler, **_: bool) -> None:
        self._handlers[topic_filter] = handler

    async def unsubscribe(self, topic_filter: str) -> None:
        self._handlers.pop(topic_filter, None)

    def max_payload_bytes(self, _: str) -> int:
        return MAX_PAYLOAD_BYTES

    def is_unheard(self, _: str) -> bool:
        return False

    def publish(self, topic: str, payload: bytes, **_: object) -> bool:
        self.published.put_nowait((topic, payload))
        return True

    def deliver(self, topic_filter: str, topic: str, payload: bytes) -> None:
        """Hand one message to the subscriber of ``topic_filter`` in a turn of its own, as a connection does."""
        asyncio.get_running_loop().call_soon(self._handlers[topic_filter], topic, payload)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `Transport.__aexit__`."""


class NoOtherDaemon:
    """What a daemon without others does for operators."""

    async def transfer(self, _shard: int, daemon: str, _token: str) -> str | None:
        return f"no daemon {daemon!r} is live"

    async def raise_level(self, *_: int) -> str | None:
        return None

    set_shards = raise_level

    async def set_maintenance(self, _daemon: str, *, on: bool, token: str) -> str | None:  # noqa: ARG002 - nothing remembers it
        return None


class OneLeader:
    """A leader that serves ``state``."""

    def __init__(self, state: ShardState, observer: Observer) -> None:
        self.transport = MemoryTransport()
        context = LeaderContext(
            cluster=CLUSTER,
            instance="bench",
            ledger=Ledger(open_store("memory:///"), state.shard),
            ledger_id=b"",
            transport=self.transport,
            access=AccessControl(OPEN, observer),
            ingest=IngestSettings(),
            subscriptions=SETTINGS,
            scaling=ScalingSettings(),
            retention=RetentionSettings(),
            delete_data=_delete_nothing,
            observer=observer,
            feature_level=lambda: max(LEVELS),
            now_ms=lambda: AT_MS + round(time.monotonic() * 1000),
            new_producer_id=partial(random.Random(1).getrandbits, 63),
            drained_source=_nothing_drained,
            backlog_interval_seconds=INTERVAL_SECONDS,
            prune_interval_seconds=INTERVAL_SECONDS,
            trim_interval_seconds=3600.0,  # The chunks from before are in no store.
            overview=lambda: self.status().overview(),
            operations=NoOtherDaemon(),
        )
        self.leader = ShardLeader(state, context, lambda: False)
        role = SimpleNamespace(role=SimpleNamespace(value="leading"))
        self.controllers: list[Any] = [SimpleNamespace(leader=self.leader, leadership=role, shard=state.shard)]
        """The only shard, as a daemon has it."""

    def status(self) -> ClusterStatus:
        """Return what a daemon without others answers from, without an earlier answer."""
        return ClusterStatus(
            instance="bench",
            cluster=CLUSTER,
            version="0",
            health=lambda: HEALTH,
            leader_of=lambda _: "bench",
            now_ms=lambda: AT_MS,
            url=lambda: None,
            peers=Peers("bench", ssl.create_default_context, registry=lambda: None, token_for=str),
            controllers=lambda: self.controllers,
            spreader=lambda: None,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until the block ends; raises what a bug in the leader raised."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.leader.serve())
            await self._wait_for(codec.leader_topic(CLUSTER, self.leader.state.shard))
            yield
            serving.cancel()

    def prepared(self, body: AnyRequestBody) -> bytes:
        """Return one request of `CLIENT` as bytes."""
        request = Request(
            request_id=1,
            protocol=PROTOCOL_VERSION,
            client_id=CLIENT_ID,
            leader_epoch=self.leader.leader_epoch,
            body=body,
        )
        payload = codec.encode(request)
        assert len(payload) <= MAX_MESSAGE_BYTES, f"a message of {len(payload)} bytes is not valid"
        return payload

    async def call(self, payload: bytes) -> AnyReplyBody:
        """Send a prepared request and return the body of its reply."""
        shard = self.leader.state.shard
        topic = codec.requests_topic(CLUSTER, shard, CLIENT)
        self.transport.deliver(codec.requests_filter(CLUSTER, shard), topic, payload)
        parts = PartCollector()
        while True:
            message = await self._wait_for(codec.replies_topic(CLUSTER, CLIENT))
            # In a thread: the leader's loop does not decode replies.
            body = await asyncio.to_thread(_body_of, message, parts)
            if body is not None:
                return body

    async def _wait_for(self, topic: str) -> bytes:
        async with asyncio.timeout(REPLY_TIMEOUT_SECONDS):
            while True:
                published, payload = await self.transport.published.get()
                if published == topic:
                    return payload


def _body_of(message: bytes, parts: PartCollector) -> AnyReplyBody | None:
    """Return the body of a complete reply; None for a push or another part."""
    decoded = codec.decode_reply(message)
    if isinstance(decoded, MessagePart):
        whole = parts.add(decoded)
        return None if whole is None else _body_of(whole, parts)
    return decoded.body if isinstance(decoded, Reply) else None


async def _nothing_drained(_: DrainQuery) -> DrainedResponse:
    return DrainedResponse(id=0)


async def _delete_nothing(*_: object) -> int:
    return 0
