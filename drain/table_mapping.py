"""The tables with the entries and acknowledgements of external topics, and the meaning of their columns.

    [external.orders.entries]  # one row per record; optional
    path = "/srv/orders/entries"
    format = "parquet"         # json (lines), csv (with header), delta, iceberg
    segment = "shard"          # text: the segment's name at its source
    offset = "seq"             # whole number, from 0
    size_bytes = "bytes"       # optional
    timestamp = "at"           # optional: TIMESTAMP, or milliseconds since 1970

    [external.orders.acknowledgements]
    path = "/srv/orders/acks"
    subscription_id = "app"    # the subscription's id in headgate
    segment = "shard"
    end_offset = "next"        # acknowledged up to here (exclusive)
    first_offset = "first"     # optional, default 0: each row is cumulative

``path`` is a folder, a file, files with wildcards, or a URL of a bucket (s3, gs, az). For ``iceberg`` it is
CATALOG.NAMESPACE.TABLE, of a catalog that pyiceberg is configured for. ``delta`` and ``iceberg`` need the extra
``lakehouse``, and no jars. Rules about rows are in drain.external.file_reader, and those about tables
in drain.external.known_files.

A subscription's id is in `headgate.GrantedSegment.subscription_id`, and ``headgate subscription describe --json`` shows
it. Its name may be that of a deleted one, whose rows must not count.

With opaque positions (Kinesis) only entries can be counted. ``offset`` is then the source's position: a whole number
of any length, also as text, which rises within a segment.

    [external.clicks.entries]
    path = "/srv/clicks/entries"
    segment = "shard_id"
    offset = "sequence_number"
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headgate.errors import ConfigError
from headgate.settings.setting_errors import convert_document, explain

Format = Literal["parquet", "json", "csv", "delta", "iceberg"]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Text
    """Path of a folder, a file, or files with wildcards, or its URL; for iceberg, the name of the table."""
    format: Format = "parquet"
    segment: Text


class EntriesTable(_Table, frozen=True, kw_only=True):
    offset: Text
    size_bytes: Text | None = None
    timestamp: Text | None = None


class AcknowledgementsTable(_Table, frozen=True, kw_only=True):
    """A table with one row per range of records that a subscription has acknowledged."""

    subscription_id: Text
    end_offset: Text
    first_offset: Text | None = None


class ExternalTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of one topic. Without ``acknowledgements``, those sent to headgate count."""

    entries: EntriesTable | None = None
    acknowledgements: AcknowledgementsTable | None = None


class ExternalView(msgspec.Struct, frozen=True, kw_only=True):
    """The names of an external topic, which the ledger's facts do not contain."""

    topic: str
    labels: dict[int, str]
    """Segment → its name at the source."""
    opaque: bool = False
    """Its positions are opaque texts, and only its tables define their order."""
    checkpoints: dict[int, dict[int, str]] = {}
    """Subscription id → segment → the acknowledged checkpoint, inclusive."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    external: dict[str, ExternalTables] = {}


def read_tables(path: Path) -> dict[str, ExternalTables]:
    """Return topic → its tables, from the section ``external`` of a TOML file.

    Raises ConfigError: the file cannot be read, or a mapping is invalid; names both.
    """
    try:
        return convert_document(tomllib.loads(path.read_text("utf-8-sig")), _File).external
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {explain(str(error), _File)}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', error)}") from None
