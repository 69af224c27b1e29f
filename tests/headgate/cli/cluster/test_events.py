"""`headgate events`: which ones, how many, and how they are printed."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from headgate.reading import ledger_events
from headgate.views.cluster import LedgerEvent
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster

T, OTHER = (f"2026-01-31T17:59:59.990Z  {name}: created by anonymous, segments: 2" for name in ("t", "other"))


@pytest.mark.parametrize(
    ("words", "lines"),
    [((), [T, OTHER]), (("--tail", "1"), [OTHER]), (("--since", "earliest"), [T, OTHER]), (("--since", "latest"), [])],
)
def test_the_newest_are_printed_the_oldest_first(
    words: Sequence[str], lines: list[str], invoke: Invoke, stored: FakeCluster
) -> None:
    result = invoke("events", *words)

    assert (lines, "", 0) == (result.stdout.splitlines(), result.stderr, result.exit_code)
    found = [json.loads(line) for line in invoke("events", *words, "--json").stdout.splitlines()]
    assert [line.partition(": ")[2] for line in lines] == [each["text"] for each in found]


def test_a_search_that_ends_early_says_how_far_it_came(
    invoke: Invoke, stored: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_events, "MAX_CHUNKS", 0)

    assert "were not looked for; --since reads all" in invoke("events").stderr


def test_new_ones_follow_until_ctrl_c_and_a_terminal_obeys_no_text(
    invoke: Invoke, stored: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow(_: Any) -> AsyncIterator[LedgerEvent]:
        yield LedgerEvent(
            at_ms=0,
            shard=3,
            leader_epoch=1,
            chunk=9,
            event="key_parked",
            topic=None,
            subscription=None,
            text="bad\x1b[2J",
        )
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(ledger_events.LedgerEvents, "follow", follow)
    result = invoke("events", "--follow", "--tail", "0")

    assert (130, r"1970-01-01T00:00:00.000Z  shard 3: bad\x1b[2J" + "\n") == (result.exit_code, result.stdout)
