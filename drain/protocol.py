"""What the daemon and the Spark process say to each other: one JSON object a line, over a local socket.

Several questions may be open on one connection; a reply carries its request's id, and replies may overtake each other.
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
LINE_LIMIT_BYTES: Final = 32 * 1024 * 1024
"""The longest line: about 100 000 rows of backlog."""
EXTERNAL_LIMIT_BYTES: Final = LINE_LIMIT_BYTES // 4
"""Names that travel with one question about backlogs: some 100 000 segments. Topics beyond that are not asked about."""
REASON_LIMIT: Final = 1000
"""Characters of what is told of a table: its path, its faults and an example each."""

Failure = Literal["unreachable", "timed_out", "failed", "invalid"]


class DrainCheckError(HeadgateError):
    """The question was not answered. Whoever asked takes the segments for not drained yet, and asks again."""

    def __init__(self, text: str, failure: Failure = "failed") -> None:
        """``failure``: nobody there, no answer in time, told that it failed, or an answer that is none."""
        super().__init__(text)
        self.failure: Failure = failure


class DrainQuestion(msgspec.Struct, frozen=True):
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


class DrainAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The drained ones among the segments asked for; with ``error`` the question could not be answered."""

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


class ExternalQuestion(msgspec.Struct, frozen=True):
    """Asks for the backlog of one external topic, which the ledger's facts do not tell."""

    shard: int
    topic_id: int
    names: ExternalView

    @property
    def place(self) -> tuple[int, int]:
        """(shard, topic id)."""
        return self.shard, self.topic_id


class ExternalTold(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one external topic's backlog; in a row, what is not known is None."""

    shard: int
    topic_id: int
    rows: list[BacklogRow] = []
    as_of_ms: int | None = None
    """The time that the rows hold for; None: its tables have not been counted."""
    reason: str = ""
    """Why something is not known, in words; names the table if one is at fault."""
    at_fault: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What the daemon sends."""

    id: int
    version: int = VERSION


class Ping(Request, frozen=True, tag="ping"):
    """Asks whether process and JVM are alive."""


class AskDrained(Request, frozen=True, kw_only=True, tag="ask_drained"):
    """Everything that is to be known now; one run answers all of it."""

    questions: list[DrainQuestion]


class AskBacklog(Request, frozen=True, kw_only=True, tag="ask_backlog"):
    """The backlog of these shards; of all that have a folder if None.

    ``now_ms``: the time by the clock that the chunks' own times come from; None: that of the newest chunk.
    ``external``: the external topics of these shards; their rows stand apart. One that is not named is counted as the
    ledger has it.
    """

    shards: list[int] | None = None
    now_ms: int | None = None
    external: list[ExternalQuestion] = []


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What the Spark process sends."""

    id: int


class Pong(Reply, frozen=True, kw_only=True, tag="pong"):
    """Both are alive."""

    runs: int


class Drained(Reply, frozen=True, kw_only=True, tag="drained"):
    """One answer per question, in their order."""

    answers: list[DrainAnswer]


class BacklogTold(Reply, frozen=True, kw_only=True, tag="backlog"):
    """The rows, and which shards could not be counted (shard → why)."""

    rows: list[BacklogRow]
    failures: dict[int, str]
    watermarks: dict[int, int] = {}
    as_of_ms: dict[int, int] = {}
    """Shard → the time that its rows hold for."""
    external: list[ExternalTold] = []
    """The external topics that were asked about; a shard that could not be counted has none."""


class Failed(Reply, frozen=True, kw_only=True, tag="failed"):
    """The request could not be carried out, or not understood (then the id is 0)."""

    error: str


AnyRequest = Ping | AskDrained | AskBacklog
AnyReply = Pong | Drained | BacklogTold | Failed

_ENCODER = msgspec.json.Encoder()
_REQUESTS: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_REPLIES: msgspec.json.Decoder[AnyReply] = msgspec.json.Decoder(AnyReply)


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


def fitting(
    questions: Iterable[ExternalQuestion], limit_bytes: int = EXTERNAL_LIMIT_BYTES
) -> tuple[list[ExternalQuestion], list[ExternalTold]]:
    """Return the questions that fit into one line, by shard and topic, and what is told of the others."""
    asked: list[ExternalQuestion] = []
    left_out: list[ExternalTold] = []
    room = limit_bytes
    for question in sorted(questions, key=lambda each: each.place):
        size = len(_ENCODER.encode(question))
        if size <= room:
            asked.append(question)
            room -= size
        else:
            reason = f"the names of its {len(question.names.labels)} segments do not fit into a question any more"
            left_out.append(ExternalTold(shard=question.shard, topic_id=question.topic_id, reason=reason))
    return asked, left_out


def encode_line(message: Request | Reply) -> bytes:
    """Return ``message`` as a line."""
    return _ENCODER.encode(message) + b"\n"


def decode_request(line: bytes) -> AnyRequest:
    """Return the request in ``line``; raises msgspec.DecodeError."""
    return _REQUESTS.decode(line)


def decode_reply(line: bytes) -> AnyReply:
    """Return the reply in ``line``; raises msgspec.DecodeError."""
    return _REPLIES.decode(line)
