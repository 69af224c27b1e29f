"""The requests of one member of a subscription: register, heartbeat, confirm a revocation, leave.

It knows what a registration says, and checks what the user asked for. It keeps no state of the
membership, and does not decide when to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, get_args

from headgate.arguments import require_choice
from headgate.client.connection import Client
from headgate.client.program import host_name, library_version
from headgate.client.reply_dispatch import body_of
from headgate.errors import ConfigError
from headgate.model.entries import Balance, Order, SubscriptionType
from headgate.model.identifiers import Offset, SegmentId
from headgate.protocol import messages as m


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What a registration asks for. Invalid values raise ConfigError."""

    kind: SubscriptionType
    start: m.Start
    order: Order | None
    balance: Balance | None
    capacity: float
    reads_source: bool
    """Whether it reads an external topic's source."""

    def __post_init__(self) -> None:
        """Reject invalid values, and list the choices."""
        require_choice("start", self.start, get_args(m.Start))
        require_choice("order", self.order, (*get_args(Order), None))
        require_choice("balance", self.balance, (*get_args(Balance), None))
        if not 1 <= self.capacity * 100 <= m.MAX_CAPACITY_PERCENT:
            raise ConfigError(
                f"capacity={self.capacity:g}: use 0.01 to {m.MAX_CAPACITY_PERCENT / 100:g}; "
                "an ordinary consumer has 1.0"
            )


def subscription_type(given: SubscriptionType | str) -> SubscriptionType:
    """Return the type of that name, in any case. Raises ConfigError."""
    try:
        return SubscriptionType(given)
    except ValueError:
        raise ConfigError(f"type={given!r}: use {', '.join(SubscriptionType)}") from None


class _Member(TypedDict):
    topic: str
    subscription: str
    consumer: str
    incarnation: int


class ConsumerRequests:
    """Sends the requests of one member to its leader.

    Every method raises NoLeaderError if no leader replies in time, and RequestRejectedError if the
    leader refuses.
    """

    def __init__(
        self, client: Client, *, topic: str, subscription: str, consumer: str, options: ConsumerOptions
    ) -> None:
        self._client = client
        self._member = _Member(topic=topic, subscription=subscription, consumer=consumer, incarnation=0)
        self._options = options
        self._shard = 0

    def open(self, shard: int, incarnation: int) -> None:
        """Set what is known only when the consumer is entered."""
        self._shard = shard
        self._member["incarnation"] = incarnation

    async def register(
        self, subscription_id: int | None, positions: Mapping[SegmentId, Offset], timeout_seconds: float
    ) -> tuple[m.Registered, int]:
        """Register; return the reply and the epoch of the leader that sent it.

        ``subscription_id`` is that of the last registration, or None before the first one. Of the
        ``positions`` of a CHECKPOINT consumer the leader judges those of the newest segments; it prunes
        the oldest first.
        """
        options = self._options
        own = sorted(positions.items())[-m.MAX_HELD_SEGMENTS :] if options.kind == SubscriptionType.CHECKPOINT else []
        reply = await self._client.request(
            self._shard,
            lambda: m.RegisterConsumer(
                **self._member,
                subscription_type=options.kind,
                start=options.start,
                order=options.order,
                external=options.reads_source,
                balance=options.balance,
                capacity=round(options.capacity * 100),
                supports_bucket_ranges=options.kind != SubscriptionType.CHECKPOINT and not options.reads_source,
                subscription_id=subscription_id,
                host=host_name(),
                version=library_version(),
                positions=[(int(segment), int(offset)) for segment, offset in own],
            ),
            timeout_seconds,
        )
        return body_of(reply, m.Registered, self._leader), reply.leader_epoch

    async def heartbeat(self, held: list[tuple[int, int]]) -> m.HeartbeatReply:
        """Say that this member is alive; ``held``: (segment, generation) of all it holds."""
        reply = await self._client.request(self._shard, lambda: m.Heartbeat(**self._member, held=held))
        return body_of(reply, m.HeartbeatReply, self._leader)

    async def confirm(self, released: list[tuple[int, int]]) -> None:
        """Confirm that this member has stopped reading segments; ``released``: (segment, generation) of each."""
        await self._client.request(self._shard, lambda: m.ConfirmRevoked(**self._member, released=released))

    @property
    def _leader(self) -> str:
        return f"the leader of shard {self._shard}"

    async def leave(self, timeout_seconds: float) -> None:
        """Give up the membership."""
        await self._client.request(
            self._shard, lambda: m.LeaveConsumer(**self._member), timeout_seconds=timeout_seconds
        )
