"""The protocol between the daemon and the Spark process: one JSON object per line over a local socket.

Replies carry the id of their request, and may arrive in any order. A new optional field needs no
new version if leaving it out keeps its earlier meaning. Imports no Spark.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from drain.table_mapping import ExternalView
from headgate.errors import HeadgateError
from headgate.views.subscriptions import SegmentBacklogInfo

VERSION: Final = 1
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
"""The longest line: about 100 000 backlog rows. A longer reply is replaced by one that says so (`encode_reply`)."""
MAX_OPEN_REQUESTS: Final = 10_000
"""Requests in flight on one connection: far above one per subscription of a large daemon."""
MAX_EXTERNAL_BYTES: Final = MAX_LINE_BYTES // 4
"""Size limit of the names in one backlog request: some 100 000 segments. Topics beyond it are left out."""
MAX_REASON_LENGTH: Final = 1000
"""Longest text about a table, in characters: its path, its faults and an example of each."""

Failure = Literal["unreachable", "timed_out", "failed", "invalid", "denied", "wrong_ledger"]

BacklogKey = tuple[int, int, int]
"""(topic id, subscription id, segment)."""


class DrainCheckError(HeadgateError):
    """The query failed. The caller treats the segments as not drained yet, and asks again."""

    def __init__(self, text: str, failure: Failure = "failed") -> None:
        """``failure``: why there is no usable reply.

        No connection, no reply in time, an error reply, an invalid reply, not the expected peer, or another ledger.
        """
        super().__init__(text)
        self.failure: Failure = failure


class CountedLedger(msgspec.Struct, frozen=True):
    """The ledger that a Spark process, or a published result, has counted."""

    ledger_id: str = ""
    """Content of its ``ledger.json``; empty if it has none."""
    url: str = ""
    """Where it, or the result, is stored. Without credentials."""


RequireLedger = Callable[[CountedLedger], None]
"""Raises DrainCheckError unless the ledger is that of the daemon."""


def any_ledger(_: CountedLedger) -> None:
    """Accept every ledger: for a program that has none of its own."""


def wrong_ledger(own: CountedLedger, counted: CountedLedger) -> str | None:
    """Return why an answer about ``counted`` says nothing about ``own``; None if they are the same ledger. Pure."""
    if own.ledger_id and counted.ledger_id == own.ledger_id:
        return None
    remedy = "with the daemon's URL (HEADGATE_LEDGER or --ledger)"
    if counted.url == own.url and not counted.ledger_id:
        remedy = "where the ledger is mounted, or mount it"
    return (
        f"{counted.url} was counted, a ledger with {_described(counted)}, and this daemon's ledger is {own.url} with "
        f"{_described(own)}: start the Spark service, or the backlog job, {remedy}"
    )


def _described(ledger: CountedLedger) -> str:
    return f"the id {ledger.ledger_id}" if ledger.ledger_id else "no id"


class DrainQuery(msgspec.Struct, frozen=True):
    """Asks which of ``segments`` the subscription has drained at this seek generation.

    The reply is usable only if it is based on the durable chunk ``at_least_chunk`` or a later one. ``external`` holds
    the names of an external topic; its tables are counted if the Spark process has a mapping for it.
    """

    shard: int
    topic_id: int
    subscription_id: int
    seek_generation: int
    segments: frozenset[int]
    at_least_chunk: int
    external: ExternalView | None = None


class Backlog(SegmentBacklogInfo, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The backlog of one subscription in one segment, as Spark counts it.

    Counts are None where nothing is tracked (CHECKPOINT), and where the backlog of an external topic is unknown. Sizes
    are estimated from the mean size of the segment's records. ``oldest_ms`` is exact near the segment's end, and
    interpolated farther back (drain.backlog.merge). Rates are those of about the last minute
    (drain.backlog.rates), None if they are not known yet.
    """

    topic_id: int
    subscription_id: int
    subscription_type: str = ""
    seek_generation: int = 0
    position: int | None = None
    end_offset: int = 0
    sealed: bool = False

    @property
    def key(self) -> BacklogKey:
        return self.topic_id, self.subscription_id, self.segment

    @property
    def drained(self) -> bool:
        """Whether the segment is sealed and has no unacknowledged record."""
        return self.sealed and self.records == 0


class ExternalBacklogQuery(msgspec.Struct, frozen=True):
    """Asks for the backlog of one external topic, whose records are not in the ledger."""

    shard: int
    topic_id: int
    view: ExternalView

    @property
    def topic_key(self) -> tuple[int, int]:
        return self.shard, self.topic_id


class ExternalBacklogResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The backlog of one external topic. Unknown values in a row are None."""

    shard: int
    topic_id: int
    rows: list[Backlog] = []
    as_of_ms: int | None = None
    """The time that the rows hold for; None if its tables have not been counted."""
    reason: str = ""
    """Why some values are unknown; names the table if a table is the cause."""
    failing: bool = False
    """A table cannot be counted."""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A message from the daemon. The connection assigns the id, counting from 1."""

    id: int = 0
    version: int = VERSION


class Ping(Request, frozen=True, tag="ping"):
    """Asks whether the process and its JVM are alive, and what it counts if ``name_ledger``, which reads the store."""

    name_ledger: bool = False


class DrainedRequest(Request, frozen=True, kw_only=True, tag="drained"):
    query: DrainQuery


class BacklogRequest(Request, frozen=True, kw_only=True, tag="backlog"):
    """Asks for the backlog of one shard.

    ``now_ms``: the current time by the clock of the chunks. ``external``: the external topics of the
    shard, which are reported separately. One that is not named is reported as the ledger has it.

    ``written_to``, ``written_at_ms``, ``term_id``: the last durable chunk of the ledger ``ledger_id``, its time, and
    the term of the shard's leader, which has no newer one then. A process that has counted just that asks no store.
    Time 0: there may be newer ones, and it counts in any case; chunk 0: to the end.
    """

    shard: int
    now_ms: int = 0
    external: list[ExternalBacklogQuery] = []
    ledger_id: str = ""
    written_to: int = 0
    written_at_ms: int = 0
    term_id: int = 0


class Response(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A message from the Spark process. ``id`` is that of the request."""

    id: int
    lost_log_lines: int = 0
    """Lines that the log of this process has not accepted since its last message. The receiver counts them."""


class Pong(Response, frozen=True, kw_only=True, tag="pong"):
    runs: int
    ledger: CountedLedger | None = None
    """What this process counts, if it was asked; None while it cannot read that, because the store is unreachable."""


class CountResponse(Response, frozen=True, kw_only=True):
    watermark: int = 0
    """The last chunk that was counted."""
    ledger: CountedLedger = CountedLedger()


class DrainedResponse(CountResponse, frozen=True, kw_only=True, tag="drained", omit_defaults=True):
    drained: dict[int, int] = {}
    """Segment → the end to which it was counted."""
    from_tables: bool = False
    """Acknowledgements in a table of an external topic count too."""


class BacklogResponse(CountResponse, frozen=True, kw_only=True, tag="backlog"):
    rows: list[Backlog] = []
    as_of_ms: int = 0
    """The time that the rows hold for."""
    external: list[ExternalBacklogResponse] = []


class FailureResponse(Response, frozen=True, kw_only=True, tag="failed"):
    """The shard, or a table, was not counted, or the request could not be decoded (then the id is 0)."""

    error: str


AnyRequest = Ping | DrainedRequest | BacklogRequest
AnyResponse = Pong | DrainedResponse | BacklogResponse | FailureResponse

_ENCODER = msgspec.json.Encoder()
_REQUESTS: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_RESPONSES: msgspec.json.Decoder[AnyResponse] = msgspec.json.Decoder(AnyResponse)
decode_request, decode_response = _REQUESTS.decode, _RESPONSES.decode
"""Return what a line contains; raises msgspec.DecodeError."""


def fit_into_line(
    queries: Iterable[ExternalBacklogQuery],
) -> tuple[list[ExternalBacklogQuery], list[ExternalBacklogResponse]]:
    """Return the queries that fit into one line, by shard and topic, and the replies for those that do not."""
    sent: list[ExternalBacklogQuery] = []
    omitted: list[ExternalBacklogResponse] = []
    remaining_bytes = MAX_EXTERNAL_BYTES
    for query in sorted(queries, key=lambda each: each.topic_key):
        size = len(_ENCODER.encode(query))
        if size <= remaining_bytes:
            sent.append(query)
            remaining_bytes -= size
        else:
            reason = f"the names of its {len(query.view.labels)} segments do not fit into the request"
            omitted.append(ExternalBacklogResponse(shard=query.shard, topic_id=query.topic_id, reason=reason))
    return sent, omitted


def encode_line(message: Request | Response) -> bytes:
    return _ENCODER.encode(message) + b"\n"


def encode_reply(response: AnyResponse, limit_bytes: int = MAX_LINE_BYTES) -> bytes:
    """Return ``response`` as a line. One that is too long would break the connection, so the line says that instead."""
    line = encode_line(response)
    if len(line) <= limit_bytes:
        return line
    reason = f"the reply has {len(line)} bytes, and a line has {limit_bytes} at most"
    if isinstance(response, BacklogResponse):
        reason = f"{len(response.rows)} backlogs are too many to report: {reason}"
    return encode_line(FailureResponse(id=response.id, error=reason))
