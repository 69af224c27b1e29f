"""Check a ledger object by object, for instance a copy before it is used. Changes nothing.

A daemon reads what it needs and trusts the rest until a consumer asks for it. This reads everything:

1. The state can be restored, as a leader does.
2. There is a chunk, each is intact and follows the one before, and each number up to the last one is a chunk, or in
   a range that readers read.
3. Each of those compacted ranges ends before the last chunk, and its objects of existing segments are intact.
4. Every topic belongs to its shard. If not, the ledger was written with another number of shards.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from controller.snapshots.restore import catch_up
from headgate.errors import LedgerError, ObjectMissingError
from headgate.ledger.compacted import check_object, manifest_path, manifest_ranges, named_paths, read_manifest
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import ChunkRange, chunk_folder, chunk_path, ranges_to_read
from headgate.model.layout import ShardMap
from headgate.storage.object_store import Store
from shard.state.shard_state import ShardState

MAX_PROBLEMS: Final = 20
"""Problems of one shard that are listed: a lost folder would list a line for each object."""


@dataclass(slots=True)
class CheckedShard:
    shard: int
    chunks: int = 0
    last_chunk: int = 0
    leader_epoch: int = 0
    topics: int = 0
    ranges: int = 0
    cluster_shards: int = 0
    """The number of shards to which the cluster grew, as far as this shard knows; 0: it did not grow."""
    newest_snapshot: int = 0
    """The chunk of the newest snapshot; 0: there is none."""
    names: list[str] = field(default_factory=list)
    last_at_ms: int = 0
    """Time of the last chunk, milliseconds since 1970."""
    problems: list[str] = field(default_factory=list)


async def check_shard(store: Store, shard: int, shards: int, on_progress: Callable[[int, int], None]) -> CheckedShard:
    """Read everything of one of ``shards`` shards; raises StoreUnavailableError."""
    found = CheckedShard(shard)
    ledger, state = Ledger(store, shard), ShardState(shard)
    try:
        state, _ = await catch_up(ledger, state, lambda _: found.problems.append("a snapshot is damaged"))
    except LedgerError as error:
        found.problems.append(str(error))
    else:
        found.leader_epoch, found.topics, found.last_at_ms = state.term.leader_epoch, len(state.topics), state.at_ms
        found.names, found.cluster_shards = sorted(state.topics), max(state.ids.shard_counts, default=0)
        if (misplaced := ShardMap(state.ids.shard_counts or (shards,)).misplaced(shard, state.topics)) is not None:
            found.problems.append(misplaced)
    numbers = await ledger.numbers()
    found.newest_snapshot = max(await ledger.snapshots(), default=0)
    ranges = ranges_to_read(await manifest_ranges(store, shard))
    found.chunks, found.last_chunk, found.ranges = len(numbers), max(numbers, default=0), len(ranges)
    if numbers or ranges or not found.problems:
        found.problems += missing_numbers(shard, numbers, ranges)
    gone: dict[int, str] = {}
    last = 0, 0  # The chunk that was read last, and its term.
    for done, number in enumerate(numbers, 1):
        try:
            header = (await ledger.read(number)).header
            if last[0] == number - 1 and last[1] != header.previous_term_id:
                found.problems.append(f"{chunk_path(shard, number)} does not follow chunk {number - 1}: of two ledgers")
            last = number, header.term_id
        except ObjectMissingError as error:
            gone[number] = str(error)
        except LedgerError as error:
            found.problems.append(str(error))
        on_progress(done, len(numbers))
    if state.chunk:  # A cluster that runs has trimmed chunks and pruned segments meanwhile.
        with suppress(LedgerError):
            state, _ = await catch_up(ledger, state)
    found.problems += [error for number, error in gone.items() if number >= state.trimmed_below]
    for chunks in ranges:
        found.problems += await _range_problems(store, shard, chunks, state)
    del found.problems[MAX_PROBLEMS:]
    return found


def missing_numbers(shard: int, numbers: Iterable[int], ranges: Iterable[ChunkRange]) -> Iterator[str]:
    """Name numbers that are neither a chunk nor in a range, ranges beyond the last chunk, and a lack of both. Pure."""
    folder, present, reached, last = chunk_folder(shard), sorted(numbers), 0, max(numbers, default=0)
    covered = sorted([(number, number) for number in present] + [(each.first, each.last) for each in ranges])
    if not covered:
        yield f"{folder}: there is no chunk: they are missing, or no daemon has led this shard yet"
    for first, end in covered:
        if first > reached + 1:
            yield f"{folder}: chunks {reached + 1} to {first - 1} are missing, and no compacted range contains them"
        reached = max(reached, end)
    if reached > last:
        yield f"{folder}: a compacted range ends at chunk {reached}, and the last chunk is {last}"


async def _range_problems(store: Store, shard: int, chunks: ChunkRange, state: ShardState) -> list[str]:
    path = manifest_path(shard, chunks)
    try:
        manifest = await read_manifest(store, shard, chunks)
    except ObjectMissingError:
        return []  # A wider range replaced it after the listing.
    except LedgerError as error:
        return [str(error)]
    problems = []
    for name, expected in named_paths(manifest, state.segments()).items():
        try:
            check_object(await store.read(name), name, expected)
        except ObjectMissingError:
            problems.append(f"{name} is missing, which {path} names")
        except LedgerError as error:
            problems.append(str(error))
    return problems
