"""`headgate ledger`: copy a ledger to another store, and check a copy. Connects to no cluster, only to stores."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from controller.backup.check import CheckedShard, check_shard
from controller.backup.copy import CopiedShard, copy_shard
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.option_types import Url
from headgate.cli.terminal.output import print_table
from headgate.errors import ConfigError, LedgerError
from headgate.ledger.identity import present_shards, read_shards
from headgate.ledger.ledger import shard_folders
from headgate.model.text import plural
from headgate.storage.object_store import Store, open_store

PROGRESS_INTERVAL_SECONDS = 5.0


@click.group()
def ledger() -> None:
    """Copy a ledger to another store, or check one.

    A ledger is the URL in the daemons' [ledger] url, or a folder. Credentials come from the environment, as for
    daemons.
    """


@command(
    "headgate ledger copy file:///var/lib/headgate/ledger s3://backup/headgate",
    "headgate ledger copy /var/lib/headgate/ledger /mnt/backup/ledger",
    "headgate ledger copy s3://backup/headgate /var/lib/headgate/restored --json",
    group=ledger,
    asks_cluster=False,
)
@click.argument("source", type=Url())
@click.argument("destination", type=Url())
def copy(context: CommandContext, source: str, destination: str) -> None:
    """Copy the ledger SOURCE to DESTINATION. Its cluster may run meanwhile.

    The copy is the ledger of one moment per shard. Objects that DESTINATION has are not copied again, so a second run
    adds what is new, and continues after an interruption. Nothing is overwritten: a DESTINATION with another ledger
    is refused. If it is a backup, do not let a daemon write to it. The exit code is 1 if a shard is damaged.
    """
    stores = _opened(source), _opened(destination)
    if _url(source) == _url(destination):
        raise ConfigError(f"{source} and {destination} are one store; choose another destination")
    copied, problems = asyncio.run(_copy(*stores, source))
    if not context.printed_as_json({"shards": copied}):
        print_table(
            ("shard", "last", "copied", "ranges", "snapshots"),
            [(each.shard, each.last_chunk, each.chunks, each.ranges, each.snapshots) for each in copied],
        )
        chunks = sum(each.chunks for each in copied)
        click.echo(f"copied {plural(chunks, 'chunk')} of {plural(len(copied), 'shard')} to {destination}", err=True)
    _fail_with(problems)


@command(
    "headgate ledger check /mnt/backup/ledger",
    "headgate ledger check s3://backup/headgate --shards 4 --json",
    group=ledger,
    asks_cluster=False,
)
@click.argument("url", type=Url())
@click.option(
    "--shards", type=click.IntRange(1, 1024), help="Number of the cluster's shards. [default: the shards found]"
)
def check(context: CommandContext, url: str, shards: int | None) -> None:
    """Read every object of the ledger URL, and report what a daemon or a consumer could not read.

    The exit code is 1 if there is a problem. A cluster on this ledger needs as many shards as are listed.
    """
    checked = asyncio.run(_check(_opened(url), url, shards))
    problems = [f"shard {each.shard}: {problem}" for each in checked for problem in each.problems]
    for name, count in Counter(name for each in checked for name in each.names).items():
        if count > 1:
            problems.append(f"topic {name!r} is in {count} shards, whose copies are of different moments: copy again")
    if not context.printed_as_json({"shards": checked, "intact": not problems}):
        print_table(
            ("shard", "chunks", "last", "written", "epoch", "topics", "ranges", "snapshot"),
            [_row(each) for each in checked],
            drop=("epoch", "topics", "ranges", "last"),
        )
    _fail_with(problems)
    click.echo(f"{url} is intact: {plural(len(checked), 'shard')}", err=True)


def _fail_with(problems: list[str]) -> None:
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        raise click.exceptions.Exit(1)


def _row(found: CheckedShard) -> tuple[object, ...]:
    written = datetime.fromtimestamp(found.last_at_ms / 1000, UTC)
    chunks = found.chunks, found.last_chunk, f"{written:%Y-%m-%d %H:%M:%S}" if found.last_at_ms else None
    return found.shard, *chunks, found.leader_epoch, found.topics, found.ranges, found.newest_snapshot


def _url(text: str) -> str:
    """Return a URL for a folder as well."""
    return text.rstrip("/") if "://" in text else Path(text).resolve().as_uri()


def _opened(text: str) -> Store:
    return open_store(_url(text))


async def _shards(store: Store, name: str) -> list[int]:
    shards = await shard_folders(store)
    if not shards:
        raise ConfigError(f"{name} contains no ledger: it has no folder chunks/shard=0000")
    return shards


async def _copy(source: Store, destination: Store, name: str) -> tuple[list[CopiedShard], list[str]]:
    """Return what was copied, and what was not: the other shards are copied beside one that is damaged."""
    copied, problems = [], []
    for shard in await _shards(source, name):
        on_progress = _progress(f"shard {shard}: {{}} of {{}} chunks copied")
        try:
            copied.append(await copy_shard(source, destination, shard, on_progress))
        except LedgerError as error:
            problems.append(f"shard {shard} is not complete in the copy: {error}")
    if not copied:
        raise LedgerError(problems[0])
    return copied, problems


async def _check(store: Store, name: str, shards: int | None) -> list[CheckedShard]:
    found = await _shards(store, name)
    expected = shards or await present_shards(store)
    if found[-1] >= expected:
        raise ConfigError(f"{name} has shard {found[-1]}, so it is not a ledger of {expected} shards")
    checked = [
        await check_shard(store, shard, expected, _progress(f"shard {shard}: {{}} of {{}} chunks read"))
        for shard in range(expected)
    ]
    named = max(await read_shards(store) or 0, *(each.cluster_shards for each in checked))
    if shards and named and shards != named:
        checked[0].problems.append(f"the ledger names {named} shards of its cluster, and --shards {shards} was given")
    return checked


def _progress(text: str) -> Callable[[int, int], None]:
    """Return a function that prints a line on standard error every few seconds, if that is a terminal."""
    printed_at = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal printed_at
        if sys.stderr.isatty() and time.monotonic() - printed_at >= PROGRESS_INTERVAL_SECONDS:
            printed_at = time.monotonic()
            click.echo(text.format(done, total), err=True)

    return report
