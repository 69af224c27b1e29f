"""Prove that incremental counting and a full count agree.

Each shard is counted from its first chunk to the watermark of its updated result. All rows are compared, from which
backlogs follow; rates and tables of external topics are in no result.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from drain.backlog.job import BacklogJob, count_on
from drain.backlog.merge import StateRow, outstanding
from drain.backlog.results import Result
from drain.command_line import add_ledger_options, add_spark_options, run_command, spark_session
from drain.spark.chunks import LedgerChunks
from headgate.settings.command_parser import CommandParser

MAX_PRINTED_DIFFERENCES: Final = 50
"""Differences that are printed. The others are only counted."""
_KEY: Final = ("topic_id", "subscription_id", "segment", "bucket")


@dataclass(frozen=True, slots=True)
class Difference:
    shard: int
    where: str
    """The key of a row of the result, or its last chunk."""
    column: str
    incremental: str
    full_count: str


@dataclass(frozen=True, slots=True)
class Verdict:
    shard: int
    watermark: int
    rows: int
    backlogs: int
    records: int
    """Outstanding records, counted incrementally."""
    differences: list[Difference]


def compared(shard: int, incremental: Result, full_count: Result, topic_id: int | None = None) -> Verdict:
    rows = [[row for row in result.rows if topic_id in (None, row.topic_id)] for result in (incremental, full_count)]
    backlogs = outstanding(rows[0])
    found = _differences(shard, *rows)
    if incremental.at_ms != full_count.at_ms:
        times = (str(incremental.at_ms), str(full_count.at_ms))
        found.append(Difference(shard, f"chunk {incremental.watermark}", "at_ms", *times))
    records = sum(backlog.records or 0 for backlog in backlogs)
    return Verdict(shard, incremental.watermark, len(rows[0]), len(backlogs), records, found)


def _differences(shard: int, incremental: Iterable[StateRow], full_count: Iterable[StateRow]) -> list[Difference]:
    one, other = ({_row_key(row): row for row in rows} for rows in (incremental, full_count))
    found = []
    for key in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(key), other.get(key)
        if mine is None or theirs is None:
            presence = ("missing", "present") if mine is None else ("present", "missing")
            found.append(Difference(shard, key, "", *presence))
            continue
        for column in StateRow.__slots__:
            values = getattr(mine, column), getattr(theirs, column)
            if values[0] != values[1]:
                found.append(Difference(shard, key, column, str(values[0]), str(values[1])))
    return found


def _row_key(row: StateRow) -> str:
    named = [(name.removesuffix("_id"), getattr(row, name)) for name in _KEY]
    return " ".join(f"{name} {value}" for name, value in named if value is not None)


async def verify(
    job: BacklogJob,
    shards: Sequence[int],
    *,
    topic_id: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[list[Verdict], dict[int, str]]:
    """Return the verdicts, and the shards that could not be counted (shard → reason); raises JvmGoneError."""
    progress(f"bringing {len(shards)} shards up to date incrementally")
    incremental = await job.run(shards)
    up_to = {
        shard: result.watermark for shard, result in incremental.results.items() if shard not in incremental.failures
    }
    progress(f"counting {sum(up_to.values())} chunks from the beginning")
    full = await job.run(sorted(up_to), full=True, up_to=up_to)
    failures = incremental.failures | full.failures
    verdicts = [
        compared(shard, incremental.results[shard], full.results[shard], topic_id)
        for shard in sorted(up_to)
        if shard not in failures
    ]
    return verdicts, failures


def report(verdicts: Sequence[Verdict], failures: Mapping[int, str], *, as_json: bool) -> list[str]:
    differing = [difference for verdict in verdicts for difference in verdict.differences]
    if as_json:
        document = {"same": not differing and not failures, "shards": verdicts, "failures": failures}
        return [msgspec.json.format(msgspec.json.encode(document), indent=2).decode()]
    lines = [
        f"shard {verdict.shard}: to chunk {verdict.watermark}, {verdict.rows} rows and {verdict.backlogs} backlogs "
        f"({verdict.records} records outstanding): {len(verdict.differences) or 'no'} differences"
        for verdict in verdicts
    ]
    lines += [
        f"shard {each.shard}, {each.where}: {each.column or 'it'} is {_text(each.incremental)} "
        f"incrementally, and {_text(each.full_count)} in a full count"
        for each in differing[:MAX_PRINTED_DIFFERENCES]
    ]
    if len(differing) > MAX_PRINTED_DIFFERENCES:
        lines.append(f"and {len(differing) - MAX_PRINTED_DIFFERENCES} more")
    return lines


def _text(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:57]}..."  # noqa: PLR2004 - so that a line is read at once


def main(argv: Sequence[str] | None = None) -> int:
    """Compare once. 0: no difference; 1: a difference, or a shard could not be counted; 2: a setting is invalid."""
    parser = CommandParser(
        "headgate drain verify",
        "Compare incremental results with a full count.",
        "--ledger file:///var/lib/headgate/ledger --shard 3",
    )
    add_ledger_options(parser)
    parser.add_argument("--topic-id", type=int, help="compare this topic only (with --shard)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_spark_options(parser)
    arguments = parser.parse_args(argv)
    return run_command(_run(arguments), as_json=arguments.json)


async def _run(arguments: argparse.Namespace) -> int:
    def progress(text: str) -> None:
        print(f"{text} …", file=sys.stderr, flush=True)  # noqa: T201

    chunks = LedgerChunks(arguments.ledger)
    shards = arguments.shard or await chunks.shards()
    progress("starting Spark")
    async with spark_session(arguments) as session:
        verdicts, failures = await verify(
            BacklogJob(chunks, count_on(session, chunks)), shards, topic_id=arguments.topic_id, progress=progress
        )
    for shard, reason in sorted(failures.items()):
        print(f"headgate: shard {shard} could not be counted: {reason}", file=sys.stderr)  # noqa: T201
    for line in report(verdicts, failures, as_json=arguments.json):
        print(line)  # noqa: T201
    return 1 if failures or any(verdict.differences for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
