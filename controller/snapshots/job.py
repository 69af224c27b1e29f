"""Write the snapshots that are due, in a separate process.

    headgate snapshot --ledger file:///var/lib/headgate/ledger --shard 0 [--shard 3 …] [--chunks 2000]

Encoding a large state takes a second, which would block a daemon. The job reads the ledger, so a
snapshot is never ahead of it. Jobs may run concurrently: snapshots of one number have the same
state. The exit code is 1 if a shard failed; other shards are still written.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from controller.leadership.policy.feature_levels import supported
from controller.snapshots.format import encode_snapshot
from controller.snapshots.restore import apply_new_chunks, catch_up, load_newest_snapshot
from headgate.errors import ConfigError, HeadgateError, LedgerError, ObjectExistsError
from headgate.ledger.identity import read_level
from headgate.ledger.ledger import Ledger, if_exists
from headgate.ledger.objects import chunk_folder, snapshot_path
from headgate.process.parent_death_signal import die_with_parent
from headgate.process.resources import give_way
from headgate.settings.command_parser import CommandParser
from headgate.storage.object_store import create_own, open_store

RETAINED_SNAPSHOTS: Final = 3
"""Snapshots that are kept: the newest, one in case it is damaged, and one that a slow restore may be reading. One that
was found damaged does not count. Chunks are deleted only below the oldest, so that each has the chunks after it."""


async def take_snapshot(
    ledger: Ledger, *, least_chunks: int, now_ms: int, level: int = supported()[1], head: int = 0
) -> int | None:
    """Write a snapshot at the end of the ledger and delete old ones; return its chunk.

    ``head``: a chunk that exists, if one is known. Up to it chunks are read by number. They are listed if it is not
    reached, which decides what is missing. A process that lists a local folder locks it, so a leader's next chunk
    would wait for this process, to which others are preferred.

    None: fewer than ``least_chunks`` chunks since the last one. Raises what `catch_up` and
    `Store.create` raise, except ObjectExistsError: the snapshot has been written then.
    """
    # The numbers are enough for a snapshot that is not due. A snapshot after the end: the ledger has lost its end.
    last = max(await ledger.snapshots(), default=0)
    end = head or max(await ledger.numbers(after=max(last - 1, 0)), default=0)
    if 0 <= end - last < max(1, least_chunks):
        return None
    state = await load_newest_snapshot(ledger)
    began = state.chunk
    if head:
        await apply_new_chunks(ledger, state)
    if not head or state.chunk < head:
        state, _ = await catch_up(ledger, state)
    data = encode_snapshot(state, written_at_ms=now_ms, level=level)
    # A chunk can be read before it is durable. A power failure must not leave a snapshot that is ahead of the ledger.
    await ledger.make_durable()
    # This process may have been suspended since it read the end.
    newest = await if_exists(ledger.header, state.chunk)
    if newest is None:
        return None  # Trimmed: newer snapshots include it.
    if newest.term_id != state.terms.newest_id:
        raise LedgerError(
            f"{chunk_folder(ledger.shard)}: chunk {state.chunk} has changed since it was read: the ledger was restored "
            "from a copy meanwhile; no snapshot was written"
        )
    with contextlib.suppress(ObjectExistsError):
        await create_own(ledger.store, snapshot_path(ledger.shard, state.chunk), data)
    # Those between are unusable. Without this rule, three damaged ones would displace the last that is intact.
    usable = [number for number in await ledger.snapshots() if not began < number < state.chunk]
    for number in usable[:-RETAINED_SNAPSHOTS]:
        await ledger.store.delete(snapshot_path(ledger.shard, number))
    return state.chunk


async def _run(url: str, heads: Sequence[tuple[int, int]], least_chunks: int) -> int:
    store = open_store(url, waits=True)
    code = 0
    for shard, head in heads:
        began = time.monotonic()
        try:
            # Daemons of an older version read it too, until the level is raised.
            level, now_ms = await read_level(store) or supported()[1], time.time_ns() // 1_000_000
            ledger = Ledger(store, shard)
            number = await take_snapshot(ledger, least_chunks=least_chunks, now_ms=now_ms, level=level, head=head)
        except HeadgateError as error:
            print(f"headgate: shard {shard}: {error}", file=sys.stderr)  # noqa: T201
            code = 1
            continue
        if number is not None:
            print(f"shard {shard}: snapshot of chunk {number} in {time.monotonic() - began:.2f} s")  # noqa: T201
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run once. 0: all due snapshots are written; 1: a shard failed; 2: a setting is wrong."""
    parser = CommandParser(
        "headgate snapshot",
        "Write the snapshots of shards that are due, once.",
        "--ledger file:///var/lib/headgate/ledger --shard 0 --shard 3",
    )
    parser.add_argument("--ledger", required=True, help="URL of the ledger, e.g. file:///var/lib/headgate/ledger")
    parser.add_argument("--shard", type=int, action="append", required=True, help="may be repeated")
    parser.add_argument("--head", type=int, action="append", default=[], help="a chunk that exists, for each --shard")
    parser.add_argument("--chunks", type=int, default=1, help="minimum of new chunks for a new snapshot (default: 1)")
    parser.add_argument("--parent", type=int, help="process id of the parent to die with")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with_parent(arguments.parent)
        give_way(10)  # Clients wait for the daemon, not for this job.
    try:
        heads = list(zip_longest(arguments.shard, arguments.head[: len(arguments.shard)], fillvalue=0))
        return asyncio.run(_run(arguments.ledger, heads, arguments.chunks))
    except ConfigError as error:
        print(f"headgate: {error}", file=sys.stderr)  # noqa: T201
        return 2


if __name__ == "__main__":
    sys.exit(main())
