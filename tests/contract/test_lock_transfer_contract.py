"""The contract of `Elections` for passing a lock on to a successor: on the fake, and on a real ZooKeeper."""

import pytest

from controller.leadership.election import Connected, LockEvent, Lost, Suspended
from controller.leadership.policy.transitions import Event
from tests.support.waiting import never, until
from tests.support.worlds.election_environments import Candidate, ElectionHarness, Join, leader_and_contender

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(params=["fake", pytest.param("secure_zookeeper", marks=pytest.mark.contract)])
def environment(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def waiting_line(join: Join, *, nominates: bool = False) -> tuple[Candidate, Candidate, Candidate]:
    """Return the holder and two contenders, in the order of the queue. The last one may be nominated."""
    a, b = await leader_and_contender(join)
    c = await join("c")
    c.elections.contend(0)
    await until(lambda: seen(a, "a", "bc") and seen(c, "a", "bc"))
    if nominates:
        await nominate(a, c, "c")
    return a, b, c


def seen(candidate: Candidate, holder: str, waiting: str) -> bool:
    queue = candidate.elections.queue(0)
    return queue is not None and (queue.holder, queue.waiting) == (holder, frozenset(waiting))


async def test_a_lock_passes_on_to_the_successor_before_all_others(join: Join) -> None:
    a, b, c = await waiting_line(join)

    await nominate(a, c, "c")
    await never(lambda: a.ready, 0.3)
    await confirm(c, a)
    assert c.first == b.first == set()
    a.pass_on(0)
    a.elections.contend(0)

    await until(lambda: c.first == {0})
    await until(lambda: all(seen(each, "c", "ab") for each in (a, b, c)))
    assert b.nominated == []
    assert LockEvent(0, Event.LOCK_LOST) not in a.events
    # It is in front only as long as it is there.
    c.withdraw(0)
    await until(lambda: b.first == {0})


async def test_a_lock_passes_on_again_from_a_holder_that_was_not_next(join: Join) -> None:
    a, b, c = await waiting_line(join)
    await hand(a, c, "c")
    a.elections.contend(0)
    # "c" may have seen the place that "a" is about to leave.
    await until(lambda: seen(a, "c", "ab"))

    await hand(c, a, "a")

    assert b.first == set()
    assert c.nominated == [0]


async def nominate(source: Candidate, target: Candidate, name: str) -> None:
    source.elections.nominate(0, name)
    await until(lambda: target.nominated == [0])


async def confirm(target: Candidate, source: Candidate) -> None:
    target.elections.confirm(0)
    await until(lambda: source.ready == [0])


async def hand(source: Candidate, target: Candidate, name: str, *, fixed: bool = False) -> None:
    source.elections.nominate(0, name)
    target.nominated.clear()
    await until(lambda: target.nominated == [0])
    target.elections.confirm(0)
    source.ready.clear()
    await until(lambda: source.ready == [0])
    source.pass_on(0, fixed=fixed)
    await until(lambda: target.first == {0})
    target.nominated[:] = [0]


async def test_a_holder_is_passed_over_if_it_is_the_named_one(join: Join) -> None:
    a, b, c = await waiting_line(join)
    await hand(a, c, "c")
    a.elections.contend(0)
    await until(lambda: seen(b, "c", "ab") and seen(a, "c", "ab"))

    a.elections.pass_over(0, "b")
    await never(lambda: b.first, 0.3)
    a.elections.pass_over(0, "c")

    await until(lambda: b.first == {0} and c.first == set())
    await until(lambda: all(seen(each, "b", "ac") for each in (a, b, c)))


async def test_a_transfer_by_an_operator_is_shown_while_its_target_is_first(join: Join) -> None:
    a, b, c = await waiting_line(join)

    await hand(a, c, "c", fixed=True)

    await until(lambda: all(each.elections.queue(0).fixed for each in (b, c)))
    c.withdraw(0)
    await until(lambda: seen(b, "b", "") and not b.elections.queue(0).fixed)


async def test_an_operator_can_have_a_lock_kept_where_it_is(join: Join) -> None:
    a, b, c = await waiting_line(join)

    b.elections.keep(0)
    a.elections.keep(0)

    await until(lambda: all(each.elections.queue(0).fixed for each in (a, b, c)))
    assert (a.first, b.first, c.first) == ({0}, set(), set())
    # A successor can be nominated as before, and the wish ends with the transfer.
    await hand(a, c, "c")
    await until(lambda: seen(b, "c", "b") and not b.elections.queue(0).fixed)
    # Only the holder can have it kept.
    c.withdraw(0)
    await until(lambda: b.first == {0})
    await never(lambda: b.elections.queue(0).fixed, 0.3)


async def test_a_lock_can_be_kept_after_a_transfer_was_abandoned(join: Join) -> None:
    a, b, c = await waiting_line(join, nominates=True)

    a.elections.nominate(0, "")
    a.elections.keep(0)

    await until(lambda: all(each.elections.queue(0).fixed for each in (a, b, c)))


async def test_a_lock_passes_to_the_next_one_if_the_successor_has_left(join: Join) -> None:
    a, b, c = await waiting_line(join, nominates=True)

    c.withdraw(0)
    await until(lambda: seen(a, "a", "b"))
    a.pass_on(0)

    await until(lambda: b.first == {0})


async def test_a_holder_learns_that_its_successor_has_left(join: Join) -> None:
    a, b, c = await waiting_line(join, nominates=True)

    c.withdraw(0)

    await until(lambda: LockEvent(0, Event.SUCCESSOR_LEFT) in a.events)
    await nominate(a, b, "b")
    await confirm(b, a)
    assert a.events.count(LockEvent(0, Event.SUCCESSOR_LEFT)) == 1


@pytest.mark.parametrize("passed_over", [False, True])
async def test_a_lock_that_is_passed_on_just_before_the_end_reaches_its_successor(harness, join, *, passed_over):
    """As in a daemon that stops: it ends once it has transferred its shards, or passed a frozen successor over."""
    a = Candidate()
    a.elections = await harness.build("a", a.on_event)
    async with a.elections:
        a.elections.contend(0)
        await until(lambda: a.first == {0})
        b, c = await join("b"), await join("c")
        b.elections.contend(0)
        await until(lambda: seen(a, "a", "b"))
        c.elections.contend(0)
        await until(lambda: seen(a, "a", "bc"))
        await nominate(a, c, "c")
        await confirm(c, a)
        a.pass_on(0)
        if passed_over:
            a.elections.contend(0)
            await until(lambda: seen(a, "c", "ab"))
            a.elections.pass_over(0, "c")

    first, behind = (b, c) if passed_over else (c, b)
    await until(lambda: first.first == {0} and behind.first == set())


async def test_only_the_last_nomination_counts(join: Join) -> None:
    a, b, c = await waiting_line(join)

    await nominate(a, b, "b")
    await nominate(a, c, "c")
    b.elections.confirm(0)
    await never(lambda: a.ready, 0.3)
    await confirm(c, a)
    a.pass_on(0)

    await until(lambda: c.first == {0})


async def test_nominating_a_stranger_is_answered_by_silence(join: Join) -> None:
    a, b, c = await waiting_line(join)

    a.elections.nominate(0, "stranger")

    await never(lambda: a.ready or b.nominated or c.nominated, 0.3)
    a.withdraw(0)
    await until(lambda: b.first == {0})


@pytest.mark.usefixtures("short_session")
async def test_a_grant_that_comes_too_late_changes_nothing(harness: ElectionHarness, join: Join) -> None:
    """The session of the holder has expired meanwhile, so another one is entitled already, by the order of the queue."""
    a, b, c = await waiting_line(join, nominates=True)
    await harness.partition("a")
    await until(lambda: Suspended() in a.events)

    a.pass_on(0, fixed=True)
    await until(lambda: c.first == {0})
    await harness.heal("a")
    await until(lambda: a.events[-1] == Connected() and Lost() in a.events)

    await never(lambda: b.first or c.elections.queue(0).fixed, 0.3)
    assert c.first == {0}


async def test_a_lock_passes_to_the_one_that_was_placed_next(join: Join) -> None:
    a, b, c = await waiting_line(join)

    b.elections.place_next(0, "b")
    a.elections.place_next(0, "c")

    await until(lambda: all(next_one(each) == "c" for each in (a, b, c)))
    assert (a.first, b.first, c.first) == ({0}, set(), set())
    a.withdraw(0)
    await until(lambda: c.first == {0})
    await until(lambda: seen(b, "c", "b") and next_one(b) == "b")
    assert b.first == set()
    # The order ends with those that it names.
    a.elections.contend(0)
    await until(lambda: seen(c, "c", "ab"))
    c.withdraw(0)
    await until(lambda: b.first == {0})


async def test_who_is_next_can_change_and_does_not_end_what_an_operator_wants(join: Join) -> None:
    a, b, c = await waiting_line(join)

    a.elections.place_next(0, "c")
    await until(lambda: next_one(b) == "c")
    a.elections.keep(0)
    await until(lambda: all(each.elections.queue(0).fixed for each in (a, b, c)))
    assert next_one(a) == "c"
    a.elections.place_next(0, "b")

    await until(lambda: all(next_one(each) == "b" for each in (a, b, c)))
    assert all(each.elections.queue(0).fixed for each in (a, b, c))


async def test_the_successor_of_a_transfer_is_next_meanwhile(join: Join) -> None:
    a, b, c = await waiting_line(join)
    a.elections.place_next(0, "b")

    a.elections.nominate(0, "c")

    await until(lambda: all(next_one(each) == "c" for each in (a, b, c)))
    a.elections.nominate(0, "")
    await until(lambda: all(next_one(each) == "b" for each in (a, b, c)))


async def test_a_nomination_ends_with_the_place_of_its_holder(join: Join) -> None:
    a, b, c = await waiting_line(join, nominates=True)
    a.withdraw(0)
    await until(lambda: c.first == {0})
    a.elections.contend(0)
    await hand(c, b, "b")
    c.elections.contend(0)
    await until(lambda: seen(b, "b", "ac"))
    await hand(b, a, "a")
    b.elections.contend(0)
    await until(lambda: seen(a, "a", "bc"))

    a.elections.place_next(0, "b")

    await until(lambda: next_one(c) == "b")


async def test_a_contender_that_comes_back_is_next_again_only_if_it_is_placed_again(join: Join) -> None:
    a, b, c = await waiting_line(join)
    a.elections.place_next(0, "c")
    await until(lambda: next_one(b) == "c")

    c.withdraw(0)
    await until(lambda: seen(a, "a", "b"))
    c.elections.contend(0)
    await until(lambda: seen(a, "a", "bc"))

    await never(lambda: next_one(a) == "c", 0.3)
    a.elections.place_next(0, "c")
    await until(lambda: all(next_one(each) == "c" for each in (a, b, c)))


def next_one(candidate: Candidate) -> str:
    queue = candidate.elections.queue(0)
    return "" if queue is None else queue.next
