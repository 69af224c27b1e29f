"""Bring a state up to the end of its ledger: from the newest snapshot that can be used, and the chunks after it.

What it costs depends on the chunks since the last snapshot, not on the ledger's age.

The rules:

1. A snapshot that cannot be used is told, and the one before it is taken; then the whole ledger, if it is still there.
2. A snapshot stands only if its own chunk does: one that is ahead of the ledger belongs to another ledger, or the
   ledger has lost its end. Going on would fork what clients were told.
3. The end that is reached by number may be a hole or a trim: a listing decides. What was trimmed beneath a reader that
   fell behind is in a newer snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from controller.snapshots.format import SnapshotError, decode_steps
from controller.state.shard_state import ShardState
from headgate.errors import ChunkError, ObjectMissingError
from headgate.ledger.ledger import Ledger, chunk_folder, run_start, snapshot_path

OnUnusableSnapshot = Callable[[int], None]
"""Is told the shard of a snapshot that cannot be used."""

log = structlog.get_logger(__name__)


async def load_newest_snapshot(ledger: Ledger, on_unusable: OnUnusableSnapshot) -> ShardState:
    """Return the state of the newest usable snapshot; an empty one if there is none and the ledger begins at 1.

    Raises:
        ChunkError: a snapshot is ahead of the ledger, or none can be used and the first chunks have been trimmed.
        StoreUnavailableError: the store is out of reach.

    """
    faults: list[str] = []
    for number in reversed(await ledger.snapshots()):
        where = snapshot_path(ledger.shard, number)
        if not await ledger.exists(number):
            raise ChunkError(
                f"{where} is ahead of {chunk_folder(ledger.shard)}: chunk {number} is missing, although a snapshot "
                "is only written once its chunk is durable; the ledger has lost its end, or belongs elsewhere",
            )
        try:
            return await _decode_cooperatively(await ledger.store.read(where), ledger.shard, number)
        except (SnapshotError, ObjectMissingError) as error:
            # Missing: newer ones were written while we looked, and it was one too many.
            on_unusable(ledger.shard)
            log.warning("snapshot.unusable", shard=ledger.shard, chunk=number, reason=str(error))
            faults.append(str(error))
    numbers = await ledger.numbers()
    if (missing := await _highest_missing(ledger, numbers, 1)) is not None:
        raise ChunkError(
            f"{chunk_folder(ledger.shard)}: chunk {missing} is missing, and no snapshot can be used in its place "
            f"({'; '.join(faults) or 'there is none'}): the ledger has a gap, or has been trimmed",
        )
    return ShardState(ledger.shard)


async def apply_new_chunks(ledger: Ledger, state: ShardState) -> int:
    """Fold every chunk that is not folded yet, as far as the numbers go on; return how many."""
    read = 0
    while (found := await ledger.read_or_none(state.chunk + 1)) is not None:
        state.apply_all(found.entries, chunk=found.header.number, at_ms=found.header.at_ms)
        read += 1
    return read


async def catch_up(ledger: Ledger, state: ShardState, on_unusable: OnUnusableSnapshot) -> tuple[ShardState, int]:
    """Return a state at the end of the ledger, and how many chunks it took; goes on from ``state`` where it can.

    Raises:
        ChunkError: a chunk cannot be read, is missing from the middle, or a snapshot is ahead.
        StoreUnavailableError: the store is out of reach; ``state`` may have moved on.

    """
    current = state if state.chunk else await load_newest_snapshot(ledger, on_unusable)
    read = 0
    while True:
        read += await apply_new_chunks(ledger, current)
        rest = await ledger.numbers(after=current.trimmed_below - 1)
        if not rest or rest[-1] <= current.chunk:
            # Whatever was not deleted on purpose must be there, also what nobody has to read again.
            if (missing := await _highest_missing(ledger, rest, current.trimmed_below)) is not None:
                raise _missing_chunk_error(ledger, missing)
            return current, read
        if not await ledger.exists(current.chunk + 1):
            newer = await load_newest_snapshot(ledger, on_unusable)
            if newer.chunk <= current.chunk:
                raise _missing_chunk_error(ledger, current.chunk + 1)
            current = newer


async def _highest_missing(ledger: Ledger, numbers: Sequence[int], first: int) -> int | None:
    """Return the highest number from ``first`` on that is missing below the last of ``numbers``, or None."""
    if not numbers or (start := run_start(numbers)) <= first:
        return None
    # A listing made while somebody writes may show a chunk and not yet the one before it.
    return None if await ledger.exists(start - 1) else start - 1


def _missing_chunk_error(ledger: Ledger, missing: int) -> ChunkError:
    return ChunkError(f"{chunk_folder(ledger.shard)}: chunk {missing} is missing; the ledger has a gap")


async def _decode_cooperatively(data: bytes, shard: int, number: int) -> ShardState:
    """Decode without holding up the loop for more than a part."""
    steps = decode_steps(data, shard=shard, chunk=number)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            state: ShardState = done.value
            return state
        await asyncio.sleep(0)
