"""Which tables hold the entries and acknowledgements of an external topic, and which of their columns mean what.

In the daemon's configuration, and in whatever TOML file ``python -m drain.service.service --external FILE`` names:

    [external.orders.entries]                 # one row a record; leave it out where nobody keeps such a table
    path = "/srv/orders/entries"
    format = "parquet"                        # parquet, json (one object a line), csv (with a header), delta, iceberg
    segment = "shard"                         # text: the segment's name at its source
    offset = "seq"                            # whole number from 0 on
    size_bytes = "bytes"                      # optional
    timestamp_ms = "at"                       # optional: milliseconds since 1970

    [external.orders.acknowledgements]
    path = "/srv/orders/acks"
    subscription = "app"                      # text: the subscription's name in headgate
    segment = "shard"
    end_offset = "next"                       # everything below it, from first_offset on, is acknowledged
    first_offset = "first"                    # optional: left out, it is 0, and each row is cumulative
    version = "commit"                        # optional: rises from row to row; a falling end_offset is a fault then

``delta`` and ``iceberg`` need their jars in the Spark session. What may stand in the tables says
drain.external.offset_facts.

Of a topic whose positions are opaque (Kinesis) the entries alone can be counted. ``offset`` is then the source's own
mark, as text, and ``version`` tells the order of the marks: a whole number of any length, which may be the mark itself:

    [external.clicks.entries]
    path = "/srv/clicks/entries"
    segment = "shard_id"
    offset = "sequence_number"
    version = "sequence_number"

What may stand in such a table says drain.external.opaque_facts.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headgate.errors import ConfigError

Format = Literal["parquet", "json", "csv", "delta", "iceberg"]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Text
    """As Spark is to read it: a folder, a URL, or a table's name for iceberg."""
    format: Format = "parquet"
    segment: Text
    version: Text | None = None
    """Column that rises with every row of one place, so that offsets that go backward are noticed. Where positions are
    opaque it tells which entries lie behind a checkpoint; without it that is not known."""


class EntriesTable(_Table, frozen=True, kw_only=True):
    """One row a record."""

    offset: Text
    size_bytes: Text | None = None
    timestamp_ms: Text | None = None


class AcknowledgementsTable(_Table, frozen=True, kw_only=True):
    """One row for each range of records that a subscription is through with."""

    subscription: Text
    end_offset: Text
    first_offset: Text | None = None


class ExternalTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of one topic. Without acknowledgements those that headgate takes count, as for any topic."""

    entries: EntriesTable | None = None
    acknowledgements: AcknowledgementsTable | None = None


class ExternalView(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon knows of an external topic and the ledger's facts do not tell: names."""

    topic: str
    subscriptions: dict[int, str]
    """Subscription id → its name."""
    labels: dict[int, str]
    """Segment → its name at the source."""
    opaque: bool = False
    """Its positions are not offsets but marks, whose order only its tables can tell."""
    checkpoints: dict[int, dict[int, str]] = {}
    """Subscription id → segment → the mark up to which it has acknowledged, that one included."""


class _File(msgspec.Struct, frozen=True):
    external: dict[str, ExternalTables] = {}


def read_tables(path: Path) -> dict[str, ExternalTables]:
    """Return topic → its tables, from the section ``external`` of a TOML file; other sections are somebody else's.

    Raises:
        ConfigError: the file cannot be read, or a table's description is wrong; names both.

    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), _File).external
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
