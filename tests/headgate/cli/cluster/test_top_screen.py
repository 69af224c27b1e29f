"""The screen of `headgate top` at 80 x 24, as a person sees it, with keys."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from headgate.cli.cluster.top_screen import MAX_ROWS, TopScreen
from headgate.errors import NoLeaderError, RequestRejectedError
from tests.support.samples.cluster_overviews import NOW_MS, blocked, cluster, subscription
from tests.support.waiting import until

INTERVAL_SECONDS = 600.0
"""Longer than any test: after the first answer, tests ask themselves."""
ROWS = (
    blocked("billing", outlook="never", drained_in_seconds=None, disconnected_consumers=1),
    subscription("audit", backlog_records=None, acknowledged_per_second=None, outlook="unknown"),
    subscription(
        "a-subscription-with-a-long-name", "measurements-of-machines", backlog_records=45_600, stored_per_second=0.25
    ),
)


class Answers:
    """What the cluster answers, and a way to wait until it was asked."""

    def __init__(self, *rows):
        self.answer = replace(cluster(*rows), as_of_ms=NOW_MS)
        self.error = None
        self.asked = asyncio.Event()

    async def ask(self):
        self.asked.set()
        if self.error is not None:
            raise self.error
        return self.answer


def text_of(screen):
    return [strip.text.rstrip() for strip in screen.screen._compositor.render_strips()]


@asynccontextmanager
async def shown(answers, order="lag", size=(80, 24)):
    screen = TopScreen(answers.ask, order=order, interval_seconds=INTERVAL_SECONDS)
    async with screen.run_test(size=size) as pilot:
        await answers.asked.wait()
        await until(lambda: not screen.is_running or "asking" not in text_of(screen)[1])
        await pilot.pause()
        yield screen, pilot


def first_names(screen):
    return [subscription for _, subscription in screen._shown][:3]


async def test_the_screen_of_80_columns():
    async with shown(Answers(*ROWS)) as (screen, _):
        lines = text_of(screen)

    assert lines[:6] == [
        "local: 1 of 1 daemons ready, in 20/s, backlog 1 200, 0 blocked",
        "22:13:20 UTC by vm-1; 3 subscriptions by lag",
        "topic         subscription  consumers   in/s acked/s  backlog blocked      ETA",
        "measurements… a-subscript…          2    0.2      25    45.6k       0    4 min",
        "orders        billing        2+1 away     20      25    1 200       2    never",
        "orders        audit                 2     20       ?        ?       0        ?",
    ]
    assert len(lines) == 24
    assert lines[-1].split() == [
        "l",
        "Backlog",
        "i",
        "In",
        "o",
        "Out",
        "b",
        "Blocked",
        "n",
        "Name",
        "/",
        "Search",
        "q",
        "Quit",
    ]


async def test_keys_sort_and_the_same_key_reverses():
    answers = Answers(*ROWS)
    async with shown(answers) as (screen, pilot):
        await pilot.press("b")
        assert first_names(screen)[0] == "billing"
        assert text_of(screen)[1].endswith("by blocked")
        await pilot.press("n")
        assert first_names(screen) == ["a-subscription-with-a-long-name", "audit", "billing"]
        await pilot.press("n")
        assert first_names(screen) == ["billing", "audit", "a-subscription-with-a-long-name"]
        assert text_of(screen)[1].endswith("by name, reversed")


async def test_a_search_limits_the_rows_until_escape():
    async with shown(Answers(*ROWS)) as (screen, pilot):
        await pilot.press("slash", *"audit", "enter")
        assert first_names(screen) == ["audit"]
        assert "1 of 3 subscriptions" in text_of(screen)[1]
        await pilot.press("n", "escape")
        assert len(first_names(screen)) == 3


async def test_q_ends_it():
    async with shown(Answers(*ROWS)) as (screen, pilot):
        await pilot.press("q")
        await pilot.pause()
        assert not screen.is_running
    assert screen.failure is None


async def test_new_data_are_shown_and_the_selected_row_stays_selected():
    answers = Answers(*(subscription(f"s{number}", backlog_records=100 - number) for number in range(5)))
    async with shown(answers) as (screen, pilot):
        await pilot.press("down", "down")
        assert screen._shown[screen._table.cursor_row] == ("orders", "s2")
        rows = (subscription("s2", backlog_records=7000), *answers.answer.subscriptions[:2])
        answers.answer = replace(answers.answer, subscriptions=rows, as_of_ms=NOW_MS + 2000)
        await screen._ask_once()
        await pilot.pause()
        assert first_names(screen) == ["s2", "s0", "s1"]
        assert screen._shown[screen._table.cursor_row] == ("orders", "s2")


async def test_without_an_answer_the_data_are_marked_as_stale_and_stay():
    answers = Answers(*ROWS)
    async with shown(answers) as (screen, pilot):
        answers.error = NoLeaderError("no leader describes cluster 'local'")
        await screen._ask_once()
        await pilot.pause()
        assert text_of(screen)[1].startswith("STALE, ")
        assert text_of(screen)[1].endswith("no leader describes cluster 'local'")
        assert screen._age.has_class("stale")
        assert len(first_names(screen)) == 3
        answers.error = None
        await screen._ask_once()
        await pilot.pause()
        assert not screen._age.has_class("stale")


async def test_answers_that_are_no_newer_become_stale():
    async with shown(Answers(*ROWS)) as (screen, pilot):
        came_at, answer = screen._answers[-1]
        screen._answers[-1] = came_at - 3 * INTERVAL_SECONDS, answer
        screen._show_age()
        await pilot.pause()
        assert text_of(screen)[1] == "STALE, 30 min old: the daemons show nothing newer"


@pytest.mark.parametrize("error", [NoLeaderError("no leader"), RequestRejectedError("forbidden", "not allowed")])
async def test_without_a_first_answer_it_ends_with_the_error(error):
    answers = Answers()
    answers.error = error
    screen = TopScreen(answers.ask, order="lag", interval_seconds=INTERVAL_SECONDS)
    await screen.run_async(headless=True)

    assert screen.failure is error


async def test_a_refusal_ends_it_later_too():
    answers = Answers(*ROWS)
    async with shown(answers) as (screen, _):
        answers.error = RequestRejectedError("forbidden", "not allowed any more")
        with pytest.raises(RequestRejectedError):
            await screen._ask_once()


async def test_very_many_subscriptions_are_counted_and_found_by_a_search():
    answers = Answers(*(subscription(f"s{number:04}") for number in range(MAX_ROWS + 100)))
    async with shown(answers, order="name") as (screen, pilot):
        assert len(screen._shown) == MAX_ROWS
        assert f"{MAX_ROWS} of {MAX_ROWS + 100} subscriptions" in text_of(screen)[1]
        await pilot.press("slash", *"0599")
        assert screen._shown == [("orders", "s0599")]


async def test_a_wider_terminal_shows_more_of_the_names():
    async with shown(Answers(*ROWS), size=(140, 24)) as (screen, _):
        assert "measurements-of-machines" in text_of(screen)[3]
        assert "a-subscription-with-a-long-name" in text_of(screen)[3]
