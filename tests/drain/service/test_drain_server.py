"""The server of the protocol, with a real socket and without Spark."""

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

from drain import protocol
from drain.checker.checker import SparkDrainChecker
from drain.compaction.schedule import CompactionScheduler
from drain.service.service import DrainListener, DrainServer, parsed, serve
from headgate.log.lossy_output import lose_lines, take_lost_lines
from tests.drain.test_protocol import ROW

pytestmark = pytest.mark.real_time

MANY = 1 + protocol.MAX_LINE_BYTES // len(msgspec.json.encode(ROW))
"""Backlogs that do not fit into a line."""


class Coalescer:
    """Answers without counting."""

    def __init__(self, rows: int) -> None:
        self.rows = [ROW] * rows

    async def reply(
        self, request: protocol.DrainedRequest | protocol.BacklogRequest
    ) -> protocol.DrainedResponse | protocol.BacklogResponse:
        if isinstance(request, protocol.DrainedRequest):
            return protocol.DrainedResponse(
                id=request.id, drained=dict.fromkeys(request.query.segments, 6), watermark=9
            )
        return protocol.BacklogResponse(id=request.id, rows=self.rows, watermark=9, as_of_ms=1)


@pytest.mark.parametrize(("rows", "is_reported"), [(3, True), (MANY, False)])
async def test_a_report_that_is_too_long_for_a_line_leaves_the_connection_and_other_queries_alone(
    tmp_path: Path, rows: int, is_reported: bool
) -> None:
    address = tmp_path / "s"
    server = DrainServer(Coalescer(rows), runner=None, chunks=None)
    states: list[str] = []
    async with (
        DrainListener(address, server.serve),
        SparkDrainChecker(str(address), on_state=lambda state, _: states.append(state)) as checker,
    ):
        if is_reported:
            assert len((await checker.backlog(protocol.BacklogRequest(shard=3, now_ms=7))).rows) == rows
        else:
            with pytest.raises(protocol.DrainCheckError, match=f"{rows} backlogs are too many to report"):
                await checker.backlog(protocol.BacklogRequest(shard=3, now_ms=7))
        drained = await checker.drained(protocol.DrainQuery(3, 1, 2, 0, frozenset({4}), 9))

    assert (drained.drained, states) == ({4: 6}, ["ready"])


async def test_the_process_ends_with_compaction_by_a_bug_or_without_a_jvm(tmp_path: Path, monkeypatch) -> None:
    """Nothing would be compacted or trimmed any more, and no log would say so."""
    options = ["--master", "spark://none:7077", "--compaction-chunks", "1"]
    arguments = parsed(["--ledger", tmp_path.as_uri(), "--listen", str(tmp_path / "s"), *options])
    arguments.socket, arguments.tables = tmp_path / "s", {}
    monkeypatch.setattr(CompactionScheduler, "run", AsyncMock(side_effect=[ValueError("a bug"), None]))
    with pytest.raises(ValueError, match="a bug"):
        await serve(arguments, Mock(), asyncio.Event())
    assert await serve(arguments, Mock(), asyncio.Event()) == 1


async def test_bytes_that_are_no_text_are_refused_and_the_connection_stays(tmp_path: Path) -> None:
    async with DrainListener(tmp_path / "s", DrainServer(Coalescer(1), runner=None, chunks=None).serve):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        for _ in range(2):
            writer.write(b'{"type": "\xff"}\n')
            assert "not a valid request" in protocol.decode_response(await reader.readline()).error
        writer.close()


async def test_the_lines_that_its_log_has_lost_are_reported_once(tmp_path: Path) -> None:
    """By the next answer, of whichever kind; the daemon adds them to its own."""
    take_lost_lines()
    server = DrainServer(Coalescer(1), runner=None, chunks=None)
    async with DrainListener(tmp_path / "s", server.serve):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        lost = []
        lose_lines(3)
        for _ in range(2):
            writer.write(protocol.encode_line(protocol.BacklogRequest(id=1, shard=3)))
            lost.append(protocol.decode_response(await reader.readline()).lost_log_lines)
        writer.close()
    assert [3, 0] == lost
