"""What the daemon and the Spark process say to each other: one JSON object a line, over a local socket.

Several queries may be open on one connection; a reply carries its request's id, and replies may overtake each other.
Every request names the version it speaks; a field that may be left out, and then means what it meant before, needs no
new one. This module does no I/O and knows nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from drain.external.table_mapping import ExternalView
from headgate.errors import ConfigError, HeadgateError

VERSION: Final = 1
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
"""The longest line: about 100 000 rows of backlog."""
MAX_EXTERNAL_BYTES: Final = MAX_LINE_BYTES // 4
"""Names that travel with one query about backlogs: some 100 000 segments. Topics beyond that are not asked about."""
MAX_REASON_LENGTH: Final = 1000
"""Characters of what is told of a table: its path, its faults and an example each."""

Failure = Literal["unreachable", "timed_out", "failed", "invalid"]


class DrainCheckError(HeadgateError):
    """The query was not answered. Whoever asked takes the segments for not drained yet, and asks again."""

    def __init__(self, text: str, failure: Failure = "failed") -> None:
        """``failure``: nobody there, no answer in time, told that it failed, or an answer that is none."""
        super().__init__(text)
        self.failure: Failure = failure


class DrainQuery(msgspec.Struct, frozen=True):
    """Asks which of ``segments`` the subscription has drained, at this seek generation.

    The answer counts only if it rests on chunk ``at_least_chunk`` or a later one. ``external``: the names of an
    external topic, whose tables are counted if the process knows of any.
    """

    shard: int
    topic_id: int
    subscription_id: int
    seek_generation: int
    segments: frozenset[int]
    at_least_chunk: int
    external: ExternalView | None = None


class DrainQueryResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The drained ones among the segments asked for; with ``error`` the query could not be answered."""

    drained: frozenset[int] = frozenset()
    watermark: int = 0
    error: str | None = None


class BacklogRow(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription in one segment, for people.

    Counts are None where nothing is tracked (CHECKPOINT), and in an external topic where nobody can know.
    """

    shard: int
    watermark: int
    """The chunk up to which this was counted."""
    topic_id: int
    subscription_id: int
    segment: int
    subscription_type: str
    seek_generation: int
    position: int | None
    end_offset: int
    sealed: bool
    records: int | None
    size_bytes: int | None
    """Estimated from the mean size of the segment's records."""
    holes: int | None
    oldest_ms: int | None = None
    """Timestamp of the first unacknowledged record: exact for the last few of a segment, interpolated farther back."""
    drained: bool
    stored_per_second: float | None = None
    """Over about the last minute (drain.backlog.rates); None: not known yet."""
    acknowledged_per_second: float | None = None


class ExternalBacklogQuery(msgspec.Struct, frozen=True):
    """Asks for the backlog of one external topic, which the ledger's facts do not tell."""

    shard: int
    topic_id: int
    view: ExternalView

    @property
    def topic_key(self) -> tuple[int, int]:
        """(shard, topic id)."""
        return self.shard, self.topic_id


class ExternalBacklogResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one external topic's backlog; in a row, what is not known is None."""

    shard: int
    topic_id: int
    rows: list[BacklogRow] = []
    as_of_ms: int | None = None
    """The time that the rows hold for; None: its tables have not been counted."""
    reason: str = ""
    """Why something is not known, in words; names the table if one is at fault."""
    failing: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What the daemon sends."""

    id: int
    version: int = VERSION


class Ping(Request, frozen=True, tag="ping"):
    """Asks whether process and JVM are alive."""


class DrainedRequest(Request, frozen=True, kw_only=True, tag="drained"):
    """Everything that is to be known now; one run answers all of it."""

    queries: list[DrainQuery]


class BacklogRequest(Request, frozen=True, kw_only=True, tag="backlog"):
    """The backlog of these shards; of all that have a folder if None.

    ``now_ms``: the time by the clock that the chunks' own times come from; None: that of the newest chunk.
    ``external``: the external topics of these shards; their rows stand apart. One that is not named is counted as the
    ledger has it.
    """

    shards: list[int] | None = None
    now_ms: int | None = None
    external: list[ExternalBacklogQuery] = []


class Response(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What the Spark process sends."""

    id: int


class Pong(Response, frozen=True, kw_only=True, tag="pong"):
    """Both are alive."""

    runs: int


class DrainedResponse(Response, frozen=True, kw_only=True, tag="drained"):
    """One answer per query, in their order."""

    answers: list[DrainQueryResult]


class BacklogResponse(Response, frozen=True, kw_only=True, tag="backlog"):
    """The rows, and which shards could not be counted (shard → why)."""

    rows: list[BacklogRow]
    failures: dict[int, str]
    watermarks: dict[int, int] = {}
    as_of_ms: dict[int, int] = {}
    """Shard → the time that its rows hold for."""
    external: list[ExternalBacklogResponse] = []
    """The external topics that were asked about; a shard that could not be counted has none."""


class FailureResponse(Response, frozen=True, kw_only=True, tag="failed"):
    """The request could not be carried out, or not understood (then the id is 0)."""

    error: str


AnyRequest = Ping | DrainedRequest | BacklogRequest
AnyResponse = Pong | DrainedResponse | BacklogResponse | FailureResponse

_ENCODER = msgspec.json.Encoder()
_REQUESTS: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_RESPONSES: msgspec.json.Decoder[AnyResponse] = msgspec.json.Decoder(AnyResponse)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the Spark process listens: a socket file, or a port of this machine."""

    path: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address in ``unix:/path`` or ``tcp:host:port``; raises ConfigError for anything else."""
        scheme, _, rest = text.partition(":")
        if scheme == "unix" and rest:
            return cls(path=Path(rest))
        host, _, port = rest.rpartition(":")
        if scheme == "tcp" and host and port.isdecimal() and int(port) <= 65535:  # noqa: PLR2004 - the highest port
            return cls(host=host, port=int(port))
        raise ConfigError(f"drain socket {text!r}: write unix:/absolute/path or tcp:127.0.0.1:port")

    def __str__(self) -> str:
        return f"tcp:{self.host}:{self.port}" if self.path is None else f"unix:{self.path}"


def fit_into_line(
    queries: Iterable[ExternalBacklogQuery], limit_bytes: int = MAX_EXTERNAL_BYTES
) -> tuple[list[ExternalBacklogQuery], list[ExternalBacklogResponse]]:
    """Return the queries that fit into one line, by shard and topic, and what is told of the others."""
    asked: list[ExternalBacklogQuery] = []
    omitted: list[ExternalBacklogResponse] = []
    remaining_bytes = limit_bytes
    for query in sorted(queries, key=lambda each: each.topic_key):
        size = len(_ENCODER.encode(query))
        if size <= remaining_bytes:
            asked.append(query)
            remaining_bytes -= size
        else:
            reason = f"the names of its {len(query.view.labels)} segments do not fit into a query any more"
            omitted.append(ExternalBacklogResponse(shard=query.shard, topic_id=query.topic_id, reason=reason))
    return asked, omitted


def encode_line(message: Request | Response) -> bytes:
    """Return ``message`` as a line."""
    return _ENCODER.encode(message) + b"\n"


def decode_request(line: bytes) -> AnyRequest:
    """Return the request in ``line``; raises msgspec.DecodeError."""
    return _REQUESTS.decode(line)


def decode_response(line: bytes) -> AnyResponse:
    """Return the reply in ``line``; raises msgspec.DecodeError."""
    return _RESPONSES.decode(line)
