"""What a producer and a consumer have counted since they were created. Pure.

The clients count in `ProducerTotals` and `ConsumerTotals`, which costs an addition or two. `Producer.metrics` and
`Consumer.metrics` return values. `described` tells exporters (headgate.otel, headgate.prometheus) what they mean.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Protocol, get_type_hints

import msgspec

from headgate.client.consumed_record import ConsumedRecord
from headgate.client.decisions.session_batches import Outcome


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of a value; ``unit`` in OpenTelemetry's notation."""

    kind: Literal["counter", "gauge"]
    unit: str
    text: str


class ProducerMetrics(msgspec.Struct, frozen=True):
    """The values of one producer. Records count once they have an outcome, batches of it once they are committed."""

    committed_records: Annotated[int, Metric("counter", "{record}", "Records that are durable")]
    failed_records: Annotated[int, Metric("counter", "{record}", "Records that are certainly not stored")]
    unknown_records: Annotated[int, Metric("counter", "{record}", "Records that timed out in flight")]
    rejected_records: Annotated[int, Metric("counter", "{record}", "Records that the leader rejected for good")]
    committed_bytes: Annotated[int, Metric("counter", "By", "Bytes of durable records on the wire")]
    committed_batches: Annotated[int, Metric("counter", "{batch}", "Batches that are durable")]
    commit_seconds: Annotated[float, Metric("counter", "s", "From a batch's first record to its commit, summed")]
    sent_batches: Annotated[int, Metric("counter", "{batch}", "Batches sent, with repetitions")]
    retried_batches: Annotated[int, Metric("counter", "{batch}", "Batches sent again")]
    epoch_bumps: Annotated[int, Metric("counter", "{epoch}", "Producer epochs opened after a gap")]
    buffered_bytes: Annotated[int, Metric("gauge", "By", "Bytes that have no outcome yet")]


class ConsumerMetrics(msgspec.Struct, frozen=True):
    """The values of one consumer."""

    delivered_records: Annotated[int, Metric("counter", "{record}", "Records that the program has taken")]
    redelivered_records: Annotated[int, Metric("counter", "{record}", "Of them, those that had failed before")]
    acknowledged_records: Annotated[int, Metric("counter", "{record}", "Records whose acknowledgement is stored")]
    """A part of a segment includes what it passes of the other parts."""
    rejected_acknowledgements: Annotated[int, Metric("counter", "{record}", "Acknowledgements that came too late")]
    handler_calls: Annotated[int, Metric("counter", "{call}", "Calls of the handler, with repetitions")]
    handler_seconds: Annotated[float, Metric("counter", "s", "Time in the handler, summed")]
    held_segments: Annotated[int, Metric("gauge", "{segment}", "Segments held, or parts of them")]
    queued_records: Annotated[int, Metric("gauge", "{record}", "Records read and not taken yet")]
    lag_seconds: Annotated[float, Metric("gauge", "s", "Age of the last delivered record; 0 when all are delivered")]
    """The age follows from the record's timestamp. Infinite: there are records, and none was delivered."""


PREFIXES: Final[dict[type, str]] = {ProducerMetrics: "producer", ConsumerMetrics: "consumer"}


class Measured(Protocol):
    """A producer or consumer, of headgate or headgate.sync."""

    def metrics(self) -> ProducerMetrics | ConsumerMetrics:
        """Return the present values."""


def described() -> Iterator[tuple[type, str, Metric]]:
    """Yield every value that a client has: its struct, its field and its meaning."""
    for kind in PREFIXES:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            yield kind, name, hint.__metadata__[0]


@dataclass(slots=True)
class ProducerTotals:
    """What a producer counts, once for each batch."""

    records: Counter[Outcome] = field(default_factory=Counter)
    committed_bytes: int = 0
    committed_batches: int = 0
    commit_seconds: float = 0.0


@dataclass(slots=True)
class ConsumerTotals:
    """What a consumer counts, for each record or call of the handler."""

    asked: int = 0
    """How often the program asked for a record."""
    delivered: int = 0
    redelivered: int = 0
    handler_calls: int = 0
    handler_seconds: float = 0.0
    newest: ConsumedRecord | None = None
    """The record that was delivered last."""
