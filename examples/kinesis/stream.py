"""A Kinesis stream in a folder, so that the example runs without AWS: put, split, merge, list-shards, get-records.

It behaves like Kinesis where the example depends on it. The MD5 of the partition key chooses the
open shard. A shard that was split or merged is closed and keeps its records. Sequence numbers have 56
digits and holes. Children name their parents. Apart from that it is no emulator: it supports one
writer at a time, and nothing expires. moto is no replacement, because it moves the records of a
closed shard into its children, so that no parent is left to read first. A shard's file has one JSON
line per record, as a copy of the stream in a bucket would have; external.toml maps it.

    python examples/kinesis/stream.py FOLDER create --shards 1
    python examples/kinesis/stream.py FOLDER put --keys 20 --records 100
    python examples/kinesis/stream.py FOLDER split shardId-000000000000
    python examples/kinesis/stream.py FOLDER merge shardId-000000000001 shardId-000000000002
    python examples/kinesis/stream.py FOLDER list-shards
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HASHES = 2**128
FIRST_SEQUENCE_NUMBER = 49590338271490256608559692538361571095921575989136588898
"""Like real ones, far beyond 63 bits."""


@dataclass(frozen=True)
class Record:
    """A record as GetRecords returns it."""

    sequence_number: str
    partition_key: str
    data: str


class FolderStream:
    """One stream: ``shards.json`` is the reply of ListShards, and each shard has a file of records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listing = folder / "shards.json"

    # For readers

    def list_shards(self) -> bytes:
        """Return the reply of ListShards."""
        return self._listing.read_bytes()

    def get_records(self, shard_id: str, after: str | None, limit: int = 100) -> tuple[list[Record], bool]:
        """Return up to ``limit`` records after the sequence number ``after``, and whether the shard ends there.

        Kinesis returns a NextShardIterator instead: None if a closed shard was read to its end.
        """
        # Read this before the records: a closed shard gets no further ones.
        closed = "EndingSequenceNumber" in self._shard(shard_id)["SequenceNumberRange"]
        path = self._folder / f"{shard_id}.jsonl"
        # Only complete lines: the writer may be appending another one.
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        found = [Record(**{name: json.loads(line)[name] for name in Record.__match_args__}) for line in lines]
        behind = [record for record in found if after is None or int(record.sequence_number) > int(after)]
        return behind[:limit], closed and len(behind) <= limit

    # For the owner

    def create(self, shards: int) -> None:
        """Create the stream with ``shards`` equal shards."""
        self._folder.mkdir(parents=True)
        bounds = [HASHES * n // shards for n in range(shards + 1)]
        self._write([self._made(n, bounds[n], bounds[n + 1] - 1) for n in range(shards)])

    def put(self, keys: int, records: int) -> None:
        """Put ``records`` records of each of ``keys`` keys; the data is a counter per key."""
        counts = self._folder / "counts.json"
        counted: dict[str, int] = json.loads(counts.read_text()) if counts.exists() else {}
        for _ in range(records):
            for number in range(keys):
                key = f"customer-{number}"
                counted[key] = counted.get(key, 0) + 1
                self._append(key, str(counted[key]))
        counts.write_text(json.dumps(counted))

    def split(self, shard_id: str) -> None:
        """Close a shard and open its two halves."""
        shards = self._shards()
        first, last = self._range(self._open(shards, shard_id))
        middle = (first + last + 1) // 2
        self._close(shards, [shard_id])
        shards.append(self._made(len(shards), first, middle - 1, shard_id))
        shards.append(self._made(len(shards), middle, last, shard_id))
        self._write(shards)

    def merge(self, shard_id: str, adjacent_id: str) -> None:
        """Close two adjacent shards and open one that covers both."""
        shards = self._shards()
        ranges = sorted(self._range(self._open(shards, name)) for name in (shard_id, adjacent_id))
        if ranges[0][1] + 1 != ranges[1][0]:
            sys.exit(f"{shard_id} and {adjacent_id} are not adjacent; choose two with touching hash ranges")
        self._close(shards, [shard_id, adjacent_id])
        shards.append(self._made(len(shards), ranges[0][0], ranges[1][1], shard_id, adjacent_id))
        self._write(shards)

    # Files

    def _shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = json.loads(self.list_shards())["Shards"]
        return shards

    def _shard(self, shard_id: str) -> dict[str, Any]:
        return next(shard for shard in self._shards() if shard["ShardId"] == shard_id)

    def _open(self, shards: list[dict[str, Any]], shard_id: str) -> dict[str, Any]:
        for shard in shards:
            if shard["ShardId"] == shard_id and "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                return shard
        sys.exit(f"there is no open shard {shard_id}; see list-shards")

    def _close(self, shards: list[dict[str, Any]], names: list[str]) -> None:
        for shard in shards:
            if shard["ShardId"] in names:
                shard["SequenceNumberRange"]["EndingSequenceNumber"] = self._next_sequence_number()

    @staticmethod
    def _range(shard: dict[str, Any]) -> tuple[int, int]:
        hashes = shard["HashKeyRange"]
        return int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])

    def _made(self, number: int, first: int, last: int, *parents: str) -> dict[str, Any]:
        return {
            "ShardId": f"shardId-{number:012}",
            **dict(zip(("ParentShardId", "AdjacentParentShardId"), parents, strict=False)),
            "HashKeyRange": {"StartingHashKey": str(first), "EndingHashKey": str(last)},
            "SequenceNumberRange": {"StartingSequenceNumber": self._next_sequence_number()},
        }

    def _append(self, key: str, data: str) -> None:
        hashed = int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest())
        for shard in self._shards():
            first, last = self._range(shard)
            if first <= hashed <= last and "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                line = {
                    "shard": shard["ShardId"],
                    "sequence_number": self._next_sequence_number(),
                    "partition_key": key,
                    "data": data,
                    "bytes": len(data),
                    "arrived_ms": time.time_ns() // 1_000_000,
                }
                with (self._folder / f"{shard['ShardId']}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")

    def _next_sequence_number(self) -> str:
        path = self._folder / "sequence"
        number = int(path.read_text()) + 17 if path.exists() else FIRST_SEQUENCE_NUMBER
        path.write_text(str(number))
        return str(number)

    def _write(self, shards: list[dict[str, Any]]) -> None:
        draft = self._listing.with_suffix(".new")
        draft.write_text(json.dumps({"Shards": shards}, indent=2) + "\n")
        os.replace(draft, self._listing)  # noqa: PTH105 - atomic for readers


def main() -> None:
    """Run one command on one stream."""
    parser = argparse.ArgumentParser(description="A Kinesis stream in a folder.")
    parser.add_argument("folder", type=Path)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("create").add_argument("--shards", type=int, default=1)
    put = commands.add_parser("put")
    put.add_argument("--keys", type=int, default=20)
    put.add_argument("--records", type=int, default=100)
    commands.add_parser("split").add_argument("shard")
    merge = commands.add_parser("merge")
    merge.add_argument("shard")
    merge.add_argument("adjacent")
    commands.add_parser("list-shards")
    arguments = parser.parse_args()
    stream = FolderStream(arguments.folder)
    match arguments.command:
        case "create":
            stream.create(arguments.shards)
        case "put":
            stream.put(arguments.keys, arguments.records)
        case "split":
            stream.split(arguments.shard)
        case "merge":
            stream.merge(arguments.shard, arguments.adjacent)
        case "list-shards":
            sys.stdout.write(stream.list_shards().decode())


if __name__ == "__main__":
    main()
