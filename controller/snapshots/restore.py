"""Restore the state of a shard from the newest usable snapshot and the chunks after it.

1. If a snapshot is unusable, the one before it is read, finally the whole ledger, if not trimmed. A
   snapshot of an older format stops the restore: the chunks have an older format too.
2. A snapshot without its own chunk is of another ledger, or the ledger has lost its end. Continuing
   would contradict replies that clients have received.
3. A listing decides whether a missing number is the end, a hole, or trimmed (`controller.leadership.policy.safety`,
   rule 5).
4. Chunks name the term that wrote them and the term before (`shard.state.shard_state`). A state in memory that the
   ledger does not continue is discarded: the ledger was put back to an older state.
5. All chunks that were not trimmed must exist, including those that a snapshot makes unnecessary here: consumers read
   them. Hours of chunks are kept, and a store lists a thousand per request, so a new leader, for which clients wait,
   lists only what follows its state; `controller.retention.trimmer` looks at the others while it serves.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

import structlog

from controller.leadership.policy import safety
from controller.snapshots.format import SnapshotError, decode_steps
from headgate.errors import ForeignObjectError, LedgerError, LedgerFormatError, ObjectMissingError
from headgate.ledger.chunk import Chunk
from headgate.ledger.ledger import Ledger, if_exists, run_start
from headgate.ledger.objects import chunk_folder, snapshot_path
from headgate.process.background import end_tasks
from shard.state.shard_state import ShardState
from shard.steps import TakeSteps, complete_now

OnUnusableSnapshot = Callable[[int], None]

log = structlog.get_logger(__name__)


class OtherHistoryError(LedgerError):
    """The chunks of the ledger do not continue the state."""


async def load_newest_snapshot(
    ledger: Ledger, on_unusable: OnUnusableSnapshot = lambda _: None, take_steps: TakeSteps = complete_now
) -> ShardState:
    """Return the state of the newest usable snapshot; an empty one if there is none and the ledger begins at 1.

    Raises:
        LedgerFormatError: the snapshot has an older format.
        LedgerError: a snapshot is ahead of the ledger, or none is usable and the first chunks were trimmed, or the
            shard has lost all its objects.
        StoreUnavailableError: the store is unreachable.
    """
    reasons: list[str] = []
    for number in reversed(await ledger.snapshots()):
        where = snapshot_path(ledger.shard, number)
        if not await ledger.exists(number):
            raise LedgerError(
                f"{where} is ahead of {chunk_folder(ledger.shard)}: chunk {number} is missing, although a snapshot "
                "is written only after its chunk is durable; the ledger has lost its end, or is another one"
            )
        try:
            return await take_steps(decode_steps(await ledger.store.read(where), shard=ledger.shard, chunk=number))
        except (SnapshotError, ForeignObjectError, ObjectMissingError) as error:
            # Missing: newer ones were written meanwhile, and it was deleted.
            on_unusable(ledger.shard)
            log.warning("snapshot.unusable", shard=ledger.shard, chunk=number, reason=str(error))
            reasons.append(str(error))
    if not (numbers := await ledger.numbers()):
        await ledger.require_new()
    if (missing := await _highest_missing(ledger, numbers, 1)) is not None:
        raise LedgerError(
            f"{chunk_folder(ledger.shard)}: chunk {missing} is missing, and no snapshot can replace it "
            f"({'; '.join(reasons) or 'there is none'}): the ledger has a gap, or has been trimmed"
        )
    return ShardState(ledger.shard)


async def apply_new_chunks(ledger: Ledger, state: ShardState) -> int:
    """Fold the chunks after ``state`` up to the first missing number; return how many.

    Raises OtherHistoryError if a chunk does not continue the state (rule 4), and LedgerError if one cannot be read.
    """
    read = 0
    async with aclosing(read_in_order(ledger, state.chunk + 1)) as chunks:
        async for chunk in chunks:
            if chunk.header.previous_term_id != state.terms.newest_id:
                raise _other_history(ledger, state, chunk.header.number)
            state.apply_all(chunk.entries, chunk=chunk.header.number, at_ms=chunk.header.at_ms)
            read += 1
    return read


async def catch_up(
    ledger: Ledger,
    state: ShardState,
    on_unusable: OnUnusableSnapshot = lambda _: None,
    take_steps: TakeSteps = complete_now,
    *,
    urgent: bool = False,
) -> tuple[ShardState, int]:
    """Return the state at the end of the ledger, and how many chunks were read; continues from ``state`` if possible.

    ``urgent``: clients wait. Only the chunks after the state are listed (rule 5).

    Raises:
        LedgerError: a chunk cannot be read, a chunk is missing, or a snapshot is ahead of the ledger.
        StoreUnavailableError: the store is unreachable; ``state`` may include more chunks than before.
    """
    current = state if state.chunk else await load_newest_snapshot(ledger, on_unusable, take_steps)
    read = 0
    while True:
        try:
            found, rest = await _read_and_list(ledger, current, current.chunk if urgent else current.trimmed_below - 1)
        except OtherHistoryError as error:
            if current is not state:
                raise
            log.warning("state.discarded", shard=ledger.shard, chunk=state.chunk, reason=str(error))
            current = await load_newest_snapshot(ledger, on_unusable, take_steps)
            continue
        read += found
        if safety.is_end(current.chunk, rest):
            if not urgent:
                await require_complete(ledger, rest, current.trimmed_below)
            return current, read
        if not await ledger.exists(current.chunk + 1):
            newer = await load_newest_snapshot(ledger, on_unusable, take_steps)
            if safety.is_hole(current.chunk, newer.chunk):
                raise _missing_chunk_error(ledger, current.chunk + 1)
            current = newer


async def _read_and_list(ledger: Ledger, state: ShardState, after: int) -> tuple[int, list[int]]:
    """Apply new chunks; return how many, and the numbers after ``after``, which are listed meanwhile."""
    listing = asyncio.create_task(ledger.numbers(after=after))
    checking = asyncio.create_task(_wrote(ledger, state, state.chunk))
    try:
        chunk, read, numbers = state.chunk, await apply_new_chunks(ledger, state), await listing
        if not await checking and not (numbers and numbers[-1] > chunk):
            raise _other_history(ledger, state, chunk)
        return read, numbers
    finally:
        await end_tasks(listing, checking)


async def require_own(ledger: Ledger, state: ShardState, chunk: int) -> None:
    """Raise OtherHistoryError unless the newest term of ``state`` wrote ``chunk``, which cannot have been trimmed."""
    if not await _wrote(ledger, state, chunk):
        missing = f"{chunk_folder(ledger.shard)}: chunk {chunk} of this term is missing"
        raise OtherHistoryError(f"{missing}: the ledger was put back to an older state")


async def _wrote(ledger: Ledger, state: ShardState, chunk: int) -> bool:
    """Return whether ``chunk``, of the newest term of ``state``, exists; it may have been trimmed if later ones do.

    Raises OtherHistoryError: another term wrote it.
    """
    term_id = state.terms.newest_id
    if not chunk:
        return True
    try:
        header = await if_exists(ledger.header, chunk)
    except LedgerFormatError:
        raise
    except LedgerError:
        return True  # It was folded before it was damaged. The next chunk names its term.
    if header is not None and header.term_id != term_id:
        raise _other_history(ledger, state, chunk)
    return header is not None


async def require_complete(ledger: Ledger, numbers: Sequence[int], trimmed_below: int) -> None:
    """Raise LedgerError if a chunk is missing, from ``trimmed_below`` on, below the last of ``numbers``.

    ``numbers``: the listed ones, which rise. Raises StoreUnavailableError too.
    """
    if (missing := await _highest_missing(ledger, numbers, trimmed_below)) is not None:
        raise _missing_chunk_error(ledger, missing)


async def _highest_missing(ledger: Ledger, numbers: Sequence[int], first: int) -> int | None:
    """Return the highest number from ``first`` on that is missing below the last of ``numbers``, or None."""
    if not numbers or (start := run_start(numbers)) <= first:
        return None
    # A listing made during writes may show a chunk and not yet the one before it.
    return None if await ledger.exists(start - 1) else start - 1


def _other_history(ledger: Ledger, state: ShardState, chunk: int) -> OtherHistoryError:
    return OtherHistoryError(
        f"{chunk_folder(ledger.shard)}: chunk {chunk} does not continue the state after chunk {state.chunk}, which is "
        "of another history: the ledger was put back to an older state, or holds objects of two backups. Stop all "
        "daemons, restore one backup into an empty place with `headgate ledger copy`, and set ledger.url to that"
    )


def _missing_chunk_error(ledger: Ledger, missing: int) -> LedgerError:
    return LedgerError(f"{chunk_folder(ledger.shard)}: chunk {missing} is missing; the ledger has a gap")


MAX_READS: Final = 16
"""More would decode too much in one turn of the loop: a chunk of a thousand entries takes 0.7 ms."""
CHUNKS_PER_READ: Final = 8
"""Chunks in a row after which one more read is under way."""


def reads_under_way(found: int) -> int:
    """Return how many reads may be under way after ``found`` chunks in a row.

    One at first, since a follower that keeps up finds a chunk or two, and each read beyond the end is a wasted request.
    A store that answers after 40 ms would need 80 s for 2 000 chunks, one after the other.
    """
    return min(MAX_READS, 1 + found // CHUNKS_PER_READ)


async def read_in_order(ledger: Ledger, first: int) -> AsyncGenerator[Chunk, None]:
    """Yield chunk ``first`` and those after it, up to the first missing one. Close it: reads may be under way.

    An error is raised in the turn of its chunk. What was read beyond the end is dropped, with its errors.

    Raises:
        LedgerError: a chunk cannot be read.
        StoreUnavailableError: the store is unreachable.
    """
    reads: deque[asyncio.Task[Chunk | None]] = deque()
    started = found = 0
    try:
        while True:
            while len(reads) < reads_under_way(found):
                reads.append(asyncio.create_task(if_exists(ledger.read, first + started)))
                started += 1
            chunk = await reads[0]
            reads.popleft()
            if chunk is None:
                return
            found += 1
            yield chunk
    finally:
        await end_tasks(*reads)
