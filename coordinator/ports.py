"""What a subscription coordinator needs from outside: its ledger, the drain check, its context."""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from coordinator.settings import CoordinatorSettings
from headgate.model import entries as e
from headgate.protocol.replies import Push
from metrics import events
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.subscriptions.two_witnesses import DrainClaim


class LedgerPort(Protocol):
    @property
    def durable(self) -> int:
        """Number of the newest durable chunk."""

    @property
    def term_id(self) -> int:
        """Id of the leader's term, which wrote that chunk."""

    def now_ms(self) -> int:
        """Return the ledger's time now, in milliseconds since 1970: not before that of the newest chunk."""

    def propose(self, *entries: e.AnyEntry) -> None:
        """Fold ``entries`` into the subscription at once, and make them part of the next chunk."""


PushMessage = Callable[[str, Push], None]
"""(client id, message): send it once all entries proposed so far are durable. It may be lost, duplicated or delayed."""
DoLater = Callable[[int, Callable[[], None]], None]
"""(cost, work): do it in a later turn of the event loop. The cost: the segments and consumers that it looks at."""
FollowEnd = Callable[[str], int]
"""Announces chunks to a client for a while: a consumer of it follows the end of the shard. Returns their key."""
DrainCheck = Callable[[Subscription, frozenset[int]], Awaitable[Mapping[int, DrainClaim]]]
"""Returns a claim for each of the sealed segments that is drained at the current seek generation.

A segment that is missing from the result is not drained yet. If the check raises or hangs, none is.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionContext:
    """What the parts of one subscription's coordinator share during one leader term."""

    subscription: Subscription
    topic: TopicView
    ledger: LedgerPort
    push: PushMessage
    follow: FollowEnd
    drain_check: DrainCheck | None
    """None: no segment is reported as drained, so the children of a STREAM stay blocked."""
    leader_epoch: int
    settings: CoordinatorSettings
    later: DoLater
    now_ms: Callable[[], int]
    rng: random.Random
    observer: events.Observer
