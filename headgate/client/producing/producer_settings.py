"""How a producer batches, sends and times out: the settings, their limits and the reasons of their defaults."""

from dataclasses import dataclass
from typing import Final, Literal

from headgate.errors import ConfigError
from headgate.protocol.codec import MAX_MESSAGE_BYTES
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from headgate.settings.arguments import require_choice, require_count, require_seconds

SHORTEST_REQUEST_TIMEOUT_SECONDS: Final = 0.001
"""Shorter than a round trip on loopback: every batch would be sent again before its reply."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer batches, sends and times out. Invalid combinations raise ConfigError."""

    linger_seconds: float = 0.0
    """How long a batch that is not full waits for more records. 0: until the next turn of the event
    loop; while much is unanswered, it grows anyway."""
    batch_bytes: int = 50 * 1024
    """Size at which a batch is full: large enough for little overhead, small enough for short delays.
    The more is unanswered, the larger it gets, up to 16 times as large."""
    max_in_flight: int = 16
    """Most batches of one shard in flight, its window; the leader can announce fewer. All of them are sent again when
    the leader changes. This many grown batches per round trip bound the throughput: 128 MB a second at 100 ms. A leader
    remembers 128 batches."""
    request_timeout_seconds: float = 5.0
    """After this long without a reply a batch is sent again. Longer than any commit takes."""
    delivery_timeout_seconds: float = 120.0
    """Time from `send` to the outcome. Longer than an election, a restart and a bad network together."""
    buffer_bytes: int = 32 * 1024 * 1024
    """Most bytes buffered for all shards, besides the guaranteed minimum of each."""
    guaranteed_bytes: int = 1024 * 1024
    """Bytes that each shard can buffer regardless of the others."""
    when_full: Literal["wait", "fail"] = "wait"
    """Whether `send` waits for buffer space, or raises DeliveryFailedError at once."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """Most bytes of key, value and headers together. A leader accepts no more than the default."""
    reserved_headers: bool = False
    """Whether names of headers may begin with `headgate-`, for programs that copy stored records with all of theirs."""

    def __post_init__(self) -> None:
        """Reject invalid combinations, and name both values."""
        require_seconds("linger_seconds", self.linger_seconds, at_least=0.0)
        require_seconds(
            "request_timeout_seconds", self.request_timeout_seconds, at_least=SHORTEST_REQUEST_TIMEOUT_SECONDS
        )
        require_seconds("delivery_timeout_seconds", self.delivery_timeout_seconds)
        least = self.linger_seconds + self.request_timeout_seconds
        if self.delivery_timeout_seconds < least:
            raise ConfigError(
                f"delivery_timeout_seconds={self.delivery_timeout_seconds:g} is below linger_seconds="
                f"{self.linger_seconds:g} + request_timeout_seconds={self.request_timeout_seconds:g}: a batch would "
                f"expire before its first attempt can fail; use at least {least:g}"
            )
        for name in ("batch_bytes", "max_in_flight", "guaranteed_bytes", "buffer_bytes"):
            require_count(name, getattr(self, name))
        require_count("max_record_bytes", self.max_record_bytes, MAX_RECORD_BYTES)
        if self.guaranteed_bytes > self.buffer_bytes:
            raise ConfigError(
                f"guaranteed_bytes={self.guaranteed_bytes} is above buffer_bytes={self.buffer_bytes}: the "
                "minimum of one shard must fit"
            )
        if self.batch_bytes > MAX_MESSAGE_BYTES // 2:
            raise ConfigError(
                f"batch_bytes={self.batch_bytes} leaves no space for another record in a message of "
                f"{MAX_MESSAGE_BYTES} bytes; use at most {MAX_MESSAGE_BYTES // 2}"
            )
        require_choice("when_full", self.when_full, ("wait", "fail"))
