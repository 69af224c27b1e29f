"""Read the segments of an external topic's source: headgate's JSON, or Kinesis' ``list-shards``. Pure.

Only the form is checked; LayoutError names the segment. The leader decides whether the layout is valid.

headgate's form is an object, or its ``segments`` alone:

    {"positions": "offsets", "hash_bits": 16, "source": "kafka-7",
     "segments": [{"segment": "a", "first_hash": 0, "last_hash": 65535, "end_offset": 1041},
                  {"segment": "b", "first_hash": 0, "last_hash": 32767, "parents": ["a"]}, …]}

Kinesis' form is the output of ``aws kinesis list-shards``, or a list of its pages:

* A shard with an ``EndingSequenceNumber`` is sealed. A merged one has two parents.
* Positions are opaque: sequence numbers exceed 63 bits and have holes. Hashes have 128 bits.
* A parent that is not listed has expired with all its records. A last page with a ``NextToken`` is
  rejected, because a missing page would look like expired parents.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from headgate.errors import LayoutError
from headgate.model.entries import Positions
from headgate.model.layout import SEGMENT_HASHES
from headgate.protocol.requests import SegmentImport

KINESIS_HASH_BITS = 128
DEFAULT_HASH_BITS = SEGMENT_HASHES.bit_length() - 1

Number = int | str
"""A hash. Text is accepted as well, because JSON numbers lose digits in many programs."""


@dataclass(frozen=True, slots=True)
class ExternalLayout:
    """The segments of a source, for `Admin.import_topic`."""

    segments: Sequence[SegmentImport]
    positions: Positions = "offsets"
    hash_bits: int = 0
    source: str = ""
    missing_parents: Literal["rejected", "expired"] = "rejected"


class _FileSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    segment: Number
    parents: list[Number] = []
    first_hash: Number | None = None
    last_hash: Number | None = None
    sealed: bool = False
    end_offset: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    segments: list[_FileSegment]
    positions: Positions = "offsets"
    hash_bits: int | None = None
    source: str = ""


class _HashKeyRange(msgspec.Struct, frozen=True, rename="pascal"):
    starting_hash_key: str
    ending_hash_key: str


class _SequenceNumberRange(msgspec.Struct, frozen=True, rename="pascal"):
    ending_sequence_number: str | None = None


class _Shard(msgspec.Struct, frozen=True, rename="pascal"):
    shard_id: str
    hash_key_range: _HashKeyRange
    sequence_number_range: _SequenceNumberRange
    parent_shard_id: str | None = None
    adjacent_parent_shard_id: str | None = None


class _Page(msgspec.Struct, frozen=True, rename="pascal"):
    shards: list[_Shard]
    next_token: str | None = None


def read_layout(data: bytes) -> ExternalLayout:
    """Return the listing in ``data``, in headgate's form."""
    found = _parsed(data)
    file = _converted(found if isinstance(found, dict) else {"segments": found}, _File)
    has_hashes = any(item.first_hash is not None for item in file.segments)
    hash_bits = file.hash_bits
    if hash_bits is None:
        hash_bits = DEFAULT_HASH_BITS if has_hashes else 0
    return ExternalLayout([_of_file(item) for item in file.segments], file.positions, hash_bits, file.source)


def read_list_shards(data: bytes, source: str = "") -> ExternalLayout:
    """Return the listing in ``data``: Kinesis' ListShards, or a JSON list of its pages. ``source``: of which stream."""
    found = _parsed(data)
    pages = [_converted(page, _Page) for page in (found if isinstance(found, list) else [found])]
    if not pages or pages[-1].next_token is not None:
        raise LayoutError("this is not the last page of list-shards (it has a NextToken): pass a list of all pages")
    return ExternalLayout(
        [_of_shard(shard) for page in pages for shard in page.shards],
        positions="opaque",
        hash_bits=KINESIS_HASH_BITS,
        source=source,
        missing_parents="expired",
    )


def _of_file(item: _FileSegment) -> SegmentImport:
    first, last = item.first_hash, item.last_hash
    if (first is None) != (last is None):
        raise LayoutError(f"segment {str(item.segment)!r} has only one of first_hash and last_hash")
    return _checked(
        segment=str(item.segment),
        parents=[str(parent) for parent in item.parents],
        hashes=None if first is None or last is None else (str(first), str(last)),
        sealed=item.sealed,
        end_offset=item.end_offset,
    )


def _of_shard(shard: _Shard) -> SegmentImport:
    parents = (shard.parent_shard_id, shard.adjacent_parent_shard_id)
    return _checked(
        segment=shard.shard_id,
        parents=[parent for parent in parents if parent is not None],
        hashes=(shard.hash_key_range.starting_hash_key, shard.hash_key_range.ending_hash_key),
        sealed=shard.sequence_number_range.ending_sequence_number is not None,
    )


def _checked(**fields: Any) -> SegmentImport:
    try:
        return msgspec.convert(fields, SegmentImport)
    except msgspec.ValidationError as error:
        raise LayoutError(f"segment {fields['segment']!r}: {error}") from None


def _parsed(data: bytes) -> Any:
    try:
        # Not msgspec: hashes of 128 bits can be written as numbers.
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"not JSON: {error}") from None


def _converted(found: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise LayoutError(f"not a listing: {error}") from None
