"""What a producer and a consumer record, with the real leader in virtual time, and what the command says of it."""

import os
from collections.abc import Iterator
from contextlib import closing
from copy import copy
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate import Producer
from headgate.cli.main import main
from headgate.client_history.recorder import HistoryRecorder
from headgate.errors import RequestRejectedError
from tests.support.worlds.one_shard_programs import client, orders, reader


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[HistoryRecorder]:
    with closing(HistoryRecorder(tmp_path / "history", now=count().__next__)) as made:
        yield made


def verified(path: Path, *lines: str) -> tuple[int, str]:
    path.write_bytes("".join(lines).encode("latin-1"))
    result = CliRunner().invoke(main, ["verify-history", "--complete", str(path)])
    return result.exit_code, result.output


async def test_a_recorded_history_has_no_violation_until_a_line_of_it_is_lost(
    tmp_path: Path, recorder: HistoryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled, forked = [], copy(recorder)
    async with orders(segments=1) as (world, _):
        async with Producer(client(world, "p"), interceptors=[recorder]) as producer:
            for number in range(3):
                await producer.send("orders", b"key", b"%d" % number, headers={"own": b"1"})
            with pytest.raises(RequestRejectedError):
                await producer.send("orders", b"key", b"", headers=[(str(n), b"") for n in range(64)])
        monkeypatch.setattr(os, "getpid", lambda: 0)
        async with Producer(client(world, "forked"), interceptors=[forked]) as producer:
            await producer.send("orders", b"key", b"4", headers={"own": b"1"})
        async with reader(world, interceptors=[recorder]) as consumer:
            await consumer.run(lambda record: handled.append(record.headers[0]), until_caught_up=True)
    assert handled == [("own", b"1")] * 4

    path = tmp_path / "history"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 5 + 5 + 4
    assert verified(path, *lines) == (0, "no violation: 5 records sent, 4 deliveries to 1 subscriptions\n")
    assert verified(path, *lines, lines[-1][:20])[0] == 0, "a kill has cut the last line"
    assert "history has no event: what its program had to get" in verified(path)[1]
    code, text = verified(path, *lines[:-1])
    assert (code, text.count("lost")) == (1, 2)
    assert "headgate: violations: 1 lost" in text
    code, text = verified(path, *lines[:-1], lines[-1].replace('"content":"', '"content":"0'))
    assert (code, "violations: 1 changed" in text) == (1, True)
    assert "history, line 2: 'utf-8' codec can't decode byte 0xff" in verified(path, lines[0], '{"event":"\xff"}\n')[1]
    code, text = verified(path, *lines[:2], "{}\n")
    assert (code, "history, line 3: event None is none of send," in text) == (1, True)
