"""`headgate read`: where it begins and ends, what it prints, and wrong options."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import pytest
from msgspec.structs import replace

from headgate.cli.records.record_format import record_formatter
from headgate.client.topic_source import TopicSource
from headgate.errors import HeadgateError
from headgate.model.layout import SegmentState
from headgate.reading.stored_rows import LedgerRecord
from headgate.views.topics import TopicInfo
from tests.headgate.cli.conftest import Invoke, never
from tests.support.fakes.cli_client import FakeCluster


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ((), ["0.0", "1.0", "0.1", "0.2"]),
        (("--from", "2026-01-31T18:00:00Z"), ["0.1", "0.2"]),
        (("--from", "0=1"), ["0.1", "0.2"]),
        (("--from", "0=2", "--from", "1=0"), ["1.0", "0.2"]),
        (("--tail", "2"), ["0.1", "0.2"]),
        (("--tail", "0"), []),
        (("--tail", "9"), ["0.0", "1.0", "0.1", "0.2"]),
        (("--max", "2"), ["0.0", "1.0"]),
        (("--follow", "--max", "4"), ["0.0", "1.0", "0.1", "0.2"]),
        (("--tail", "1", "-f", "--max", "1"), ["0.2"]),
    ],
)
def test_options_choose_the_records(options: tuple[str, ...], values: list[str], invoke: Invoke, stored: FakeCluster):
    result = invoke("read", "orders", *options, "--raw")

    assert 0 == result.exit_code, result.stderr
    assert "".join(f"{value}\n" for value in values) == result.stdout


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%k %o %v\n", b"alice 7 \xff\n"),
        (r"%s\t%t\t%T", b"3\t1769882400000\t2026-01-31T18:00:00.000Z"),
        ("%h", b"a=1,a=\\xff\\x00\\n,b="),
        (r"100%%\\\0", b"100%\\\0"),
        ("", b""),
        ("ä", "ä".encode()),
    ],
)
def test_a_format_is_filled_in_byte_for_byte(text: str, printed: bytes):
    assert printed == record_formatter(text)(
        LedgerRecord(3, 7, 1_769_882_400_000, b"alice", b"\xff", (("a", b"1"), ("a", b"\xff\x00\n"), ("b", b"")))
    )


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63)])
def test_a_timestamp_beyond_the_calendar_is_a_number(timestamp_ms: int):
    assert str(timestamp_ms).encode() == record_formatter("%T")(LedgerRecord(0, 0, timestamp_ms, b"", b""))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--from", "yesterday"), "or earliest, latest, or a position such as 3=1200"),
        (("--from", "3=x"), "write for example 3=1200"),
        (("--from", "9=0"), "topic 't' has no segment 9; its segments, and their offsets, are 0 (0 to 3), 1 (0 to 1)"),
        (("--from", "0=4"), "segment 0 of topic 't' ends at offset 3: choose 0 to 3"),
        (("--from", "0=1", "--from", "0=2"), "--from names a segment twice"),
        (("--from", "0=1", "--from", "latest"), "only --from SEGMENT=OFFSET can be repeated"),
        (("--from", "latest"), "--from latest prints only new records: add --follow, or use --tail N"),
        (("--from", "latest", "--tail", "3"), "give --from or --tail, not both"),
        (("--tail", "-1"), "is not in the range"),
        (("--max", "0"), "is not in the range"),
        (("--raw", "--json"), "give at most one of --format, --raw and --json"),
        (("--format", "%q"), "'%q' means nothing; choose from %k, %v, %h, %o, %s, %t, %T, %%"),
        (("--format", "%"), "'%' means nothing"),
        (("--format", "\\"), "'\\\\' means nothing"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(
    options: tuple[str, ...], message: str, invoke: Invoke, stored: FakeCluster
):
    result = invoke("read", "orders", *options)

    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr
    assert 1 == len(result.stderr.splitlines())


def test_segments_that_are_sealed_are_not_followed(invoke: Invoke, stored: FakeCluster):
    known = stored.source
    segments = tuple(replace(each, state=SegmentState.SEALED) for each in known.description.segments)
    stored.source = TopicSource(replace(known.description, segments=segments), known.ledger, "ledger", 3, never)
    result = invoke("read", "orders", "--from", "0=1", "--follow", "--max", "2")
    assert (2, True) == (result.exit_code, "no record follows in sealed segments" in result.stderr)


class SealedSource(TopicSource):
    """A topic whose segment 0 is split once it is followed."""

    async def until_deleted(self, on_change: Callable[[TopicInfo], object] = lambda _: None) -> NoReturn:
        first, *others = self.description.segments
        await asyncio.sleep(0.2)
        on_change(self.description)
        split = [replace(first, state=SegmentState.SEALED), *others, replace(first, segment=2, parents=(0,))]
        on_change(replace(self.description, segments=tuple(split)))
        await asyncio.sleep(1000)
        raise AssertionError


def test_a_segment_that_is_sealed_while_it_is_followed_ends_the_command_after_its_last_record(
    invoke: Invoke, stored: FakeCluster
):
    stored.source = SealedSource(stored.source.description, stored.source.ledger, "ledger", 3, never)
    result = invoke("read", "orders", "--from", "0=1", "--follow", "--raw")
    text = "no record follows: the named segments are sealed, and are read to the end; read on with --from 2=0\n"
    assert (0, "0.1\n0.2\n", text) == (result.exit_code, result.stdout, result.stderr)


class DeletedSource(TopicSource):
    """A topic that is deleted as soon as it is read."""

    async def until_deleted(self, *_: object) -> NoReturn:
        raise HeadgateError("topic 'orders' was deleted, with its records")


def test_a_deletion_ends_a_command_that_follows(invoke: Invoke, stored: FakeCluster):
    stored.source = DeletedSource(stored.source.description, stored.source.ledger, "ledger", 3, never)
    result = invoke("read", "orders", "--follow")

    assert (1, "headgate: topic 'orders' was deleted, with its records\n") == (result.exit_code, result.stderr)
    assert 0 == invoke("read", "orders").exit_code, "what is stored is read without watching"
