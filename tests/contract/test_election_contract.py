"""The contract of `Elections`: the same tests on the fake and on a real ZooKeeper behind proxies."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from controller.leadership.election import (
    Connected,
    ElectionClientError,
    ElectionsUnreachableError,
    LockEvent,
    Lost,
    Suspended,
)
from controller.leadership.policy.transitions import Event
from tests.support.fakes.zookeeper import FakeElections
from tests.support.waiting import never, until
from tests.support.worlds.election_environments import (
    DAEMONS,
    SESSION_SECONDS,
    STRANGER,
    Candidate,
    ElectionHarness,
    Join,
    leader_and_contender,
    listed,
)

ENVIRONMENTS = (
    "fake",
    "secure_fake",
    pytest.param("zookeeper", marks=pytest.mark.contract),
    pytest.param("secure_zookeeper", marks=pytest.mark.contract),
)
SECURE_ENVIRONMENTS = (ENVIRONMENTS[1], ENVIRONMENTS[3])


@pytest.fixture(params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_withdrawing_makes_the_next_one_first_and_contending_again_queues_at_the_end(join: Join) -> None:
    a, b = await leader_and_contender(join)

    a.withdraw(0)
    a.elections.contend(0)

    await until(lambda: b.first == {0})
    await never(lambda: a.first, 0.3)
    assert LockEvent(0, Event.LOCK_LOST) not in a.events
    b.withdraw(0)
    await until(lambda: a.first == {0})


async def test_a_waiting_contender_can_leave_the_queue(join: Join) -> None:
    a, b = await leader_and_contender(join)
    c = await join("c")
    c.elections.contend(0)

    b.withdraw(0)
    a.withdraw(0)

    await until(lambda: c.first == {0})
    assert b.first == set()


@pytest.mark.usefixtures("quick_retries")
async def test_every_contender_knows_who_is_next(join: Join) -> None:
    a, b = await leader_and_contender(join)
    c = await join("c")
    c.elections.contend(0)

    def next_seen_by(contender: Candidate) -> str:
        queue = contender.elections.queue(0)
        return "" if queue is None else queue.next

    await until(lambda: [next_seen_by(each) for each in (b, c)] == ["b", "b"])
    a.withdraw(0)
    await until(lambda: [next_seen_by(each) for each in (b, c)] == ["c", "c"])


async def test_shards_have_separate_queues(join: Join) -> None:
    a, b = await leader_and_contender(join)

    b.elections.contend(1)
    a.elections.contend(2)

    await until(lambda: a.first == {0, 2} and b.first == {1})


@pytest.mark.usefixtures("short_session")
async def test_a_partition_longer_than_the_session_ends_the_queue_place(harness: ElectionHarness, join: Join) -> None:
    """The partitioned client learns of it only when it reconnects, so no guarantee may depend on the event."""
    a, b = await leader_and_contender(join)

    await harness.partition("a")
    await until(lambda: b.first == {0})
    await until(lambda: Suspended() in a.events)
    assert Lost() not in a.events
    assert a.first == {0}

    await harness.heal("a")
    await until(lambda: a.events[-1] == Connected())
    assert a.events == [
        Connected(),
        LockEvent(0, Event.LOCK_ACQUIRED),
        Suspended(),
        LockEvent(0, Event.LOCK_LOST),
        Lost(),
        Connected(),
    ]

    b.withdraw(0)
    await until(lambda: a.first == {0})


async def test_a_short_outage_ends_no_queue_place(harness: ElectionHarness, join: Join) -> None:
    a, b = await leader_and_contender(join)

    await harness.stop()
    await until(lambda: Suspended() in a.events and Suspended() in b.events)
    await harness.start()
    await until(lambda: a.events[-1] == b.events[-1] == Connected())

    await never(lambda: b.first, 0.3)
    assert a.events == [Connected(), LockEvent(0, Event.LOCK_ACQUIRED), Suspended(), Connected()]
    # The queue still works.
    a.withdraw(0)
    await until(lambda: b.first == {0})


async def test_withdrawing_while_partitioned_takes_effect_on_reconnection(harness: ElectionHarness, join: Join) -> None:
    a, b = await leader_and_contender(join)
    await harness.stop()
    await until(lambda: Suspended() in a.events and Suspended() in b.events)

    a.withdraw(0)
    await harness.start()

    await until(lambda: b.first == {0})
    assert Lost() not in a.events


async def test_a_client_waits_for_a_service_that_is_down_at_first(harness: ElectionHarness, stack: AsyncExitStack):
    candidate = Candidate()
    candidate.elections = await harness.build("a", candidate.on_event)
    await harness.stop()
    await stack.enter_async_context(candidate.elections)
    candidate.elections.contend(0)
    config = asyncio.create_task(candidate.elections.registry.cluster_config({"shards": 4}))
    await never(lambda: candidate.events or config.done(), 0.5)

    await harness.start()

    await until(lambda: candidate.first == {0})
    assert await config == {"shards": 4}


async def test_closing_leaves_the_queues_immediately(harness: ElectionHarness, join: Join) -> None:
    a = Candidate()
    a.elections = await harness.build("a", a.on_event)
    async with a.elections:
        a.elections.contend(0)
        await until(lambda: a.first == {0})
        b = await join("b")
        b.elections.contend(0)
        await never(lambda: b.first, 0.3)

    # Not only when the session ends.
    await until(lambda: b.first == {0}, SESSION_SECONDS / 2)


@pytest.mark.parametrize("noticed", [False, True])
async def test_closing_while_partitioned_takes_a_few_seconds(harness: ElectionHarness, *, noticed: bool) -> None:
    """kazoo alone takes ten seconds or more, or waits for an answer as long as the session lasts."""
    harness.short_session = "a" if noticed else ""
    a = Candidate()
    a.elections = await harness.build("a", a.on_event)
    async with a.elections:
        a.elections.contend(0)
        await until(lambda: a.first == {0})
        await harness.partition("a")
        await until(lambda: Suspended() in a.events or not noticed)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 9
    await harness.heal("a")


async def test_the_end_of_the_client_is_reported(harness: ElectionHarness, join: Join) -> None:
    """Otherwise a daemon contends for nothing any more, and nothing shows it."""
    a, b = await leader_and_contender(join)
    failed, working = (asyncio.create_task(each.elections.watch()) for each in (a, b))
    await never(failed.done, 0.3)

    await harness.break_client("a")

    with pytest.raises(ElectionClientError, match="client has ended"):
        async with asyncio.timeout(60):
            await failed
    assert not working.done()
    working.cancel()


async def test_a_deleted_queue_node_is_released_and_created_again(harness: ElectionHarness, join: Join) -> None:
    a, b = await leader_and_contender(join)

    await harness.delete_queue_node("a", 0)

    await until(lambda: b.first == {0})
    await until(lambda: LockEvent(0, Event.LOCK_LOST) in a.events)
    b.withdraw(0)
    await until(lambda: a.first == {0})


async def test_the_first_cluster_config_is_kept(join: Join) -> None:
    a, b = await join("a"), await join("b")

    assert await a.elections.registry.cluster_config(None) == {}
    assert await a.elections.registry.cluster_config({"shards": 4, "ledger_url": "file:///a"}) == {
        "shards": 4,
        "ledger_url": "file:///a",
    }
    assert await b.elections.registry.cluster_config({"shards": 8}) == await b.elections.registry.cluster_config(None)


async def test_a_cluster_keeps_the_first_ledger_that_claims_it(join: Join) -> None:
    """Also of two at once, and of a config that an earlier version wrote."""
    a, b = await join("a"), await join("b")
    await a.elections.registry.cluster_config({"shards": 4})

    first, second = await asyncio.gather(
        a.elections.registry.claim_ledger("1" * 32), b.elections.registry.claim_ledger("2" * 32)
    )

    assert first == second
    assert first in {"1" * 32, "2" * 32}
    assert await a.elections.registry.claim_ledger("3" * 32) == first
    assert await b.elections.registry.cluster_config({"shards": 8}) == {"shards": 4, "ledger_id": first}


async def test_changes_of_the_cluster_config_are_made_one_after_the_other(harness: ElectionHarness, join: Join) -> None:
    a, b = await join("a"), await join("b")
    await a.elections.registry.cluster_config({"shards": 4})

    def add(config: dict[str, int]) -> dict[str, int]:
        return config | {"level": config.get("level", 1) + 1}

    await asyncio.gather(*(each.elections.registry.change_config(add) for each in (a, b, a, b)))
    await a.elections.registry.change_config(lambda _: None)

    assert await b.elections.registry.config() == {"shards": 4, "level": 5}
    await harness.stop()
    await until(lambda: Suspended() in b.events)
    assert await b.elections.registry.config() is None
    with pytest.raises(ElectionsUnreachableError):
        await b.elections.registry.change_config(add)


async def test_instances_are_listed_while_they_are_open(harness: ElectionHarness, join: Join) -> None:
    a = await join("a")
    await a.elections.registry.register_instance("a", b"at a")
    b = Candidate()
    b.elections = await harness.build("b", b.on_event)
    async with b.elections:
        await b.elections.registry.register_instance("b", b"at b")
        await listed(harness, {"a": b"at a", "b": b"at b"})

    await listed(harness, {"a": b"at a"})
    await a.elections.registry.register_instance("a", b"settled")
    await listed(harness, {"a": b"settled"})


async def test_a_client_sees_the_live_instances_and_none_without_contact(harness: ElectionHarness, join: Join) -> None:
    a, b = await join("a"), await join("b")
    await a.elections.registry.register_instance("a", b"at a")
    await b.elections.registry.register_instance("b", b"at b")
    await listed(harness, {"a": b"at a", "b": b"at b"})

    assert await a.elections.registry.instances() == {"a": b"at a", "b": b"at b"}
    await harness.stop()
    await until(lambda: Suspended() in a.events)
    assert await a.elections.registry.instances() is None


async def test_maintenance_is_stored_until_it_ends(harness: ElectionHarness, join: Join) -> None:
    """Also of an instance that is not live: it starts in maintenance."""
    a, b = await join("a"), await join("b")
    assert await a.elections.registry.maintenance() == frozenset()

    assert not await a.elections.registry.set_maintenance("x", on=False, token="early", new=False)
    for new in (True, False):
        assert await a.elections.registry.set_maintenance("x", on=True, token="begin", new=new)
    await a.elections.registry.set_maintenance("y", on=True, token="begin")
    assert await b.elections.registry.maintenance() == {"x", "y"}
    for _ in range(2):
        await b.elections.registry.set_maintenance("x", on=False, token="end")
    await a.elections.registry.set_maintenance("x", on=True, token="begin")
    assert await a.elections.registry.maintenance() == {"y"}, "a late copy of the first command changes nothing"
    await asyncio.gather(*(a.elections.registry.set_maintenance("z", on=True, token=f"{n}") for n in range(5)))
    await b.elections.registry.set_maintenance("z", on=False, token="4")
    assert await b.elections.registry.maintenance() == {"y", "z"}, "no token is lost among concurrent commands"

    await harness.stop()
    await until(lambda: Suspended() in a.events)
    assert await a.elections.registry.maintenance() is None
    with pytest.raises(ElectionsUnreachableError):
        await a.elections.registry.set_maintenance("z", on=True, token="later")


@pytest.mark.usefixtures("short_session")
async def test_an_instance_is_listed_again_after_its_session_expired(harness: ElectionHarness, join: Join) -> None:
    a = await join("a")
    await a.elections.registry.register_instance("a", b"at a")
    await listed(harness, {"a": b"at a"})

    await harness.partition("a")
    await listed(harness, {})
    await harness.heal("a")

    await listed(harness, {"a": b"at a"})


@pytest.mark.usefixtures("short_session")
async def test_the_name_of_an_older_session_is_registered_when_that_session_ends(harness: ElectionHarness, join: Join):
    """A daemon that was killed and restarted finds its own name registered."""
    a, b = await join("a"), await join("b")
    await a.elections.registry.register_instance("same", b"old")
    await listed(harness, {"same": b"old"})

    registered = [each.elections.registry.registered for each in (a, b)]
    with capture_logs() as logs:
        await b.elections.registry.register_instance("same", b"new")
        await never(registered[1].is_set, 1.5)
        await harness.partition("a")
        await listed(harness, {"same": b"new"})
    assert all(each.is_set() for each in registered)
    in_use = [each["event"] for each in logs if each["event"].startswith("instance.")]
    assert in_use == ([] if isinstance(a.elections, FakeElections) else ["instance.name_in_use"])


@pytest.fixture
def open_cluster(harness: ElectionHarness) -> None:
    harness.user = None


only_with_users = pytest.mark.parametrize("environment", SECURE_ENVIRONMENTS, indirect=True)


@only_with_users
@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("user", [STRANGER, None], ids=["another user", "no user"])
async def test_another_user_is_refused_and_gets_nothing(harness, join, stack, user):
    a = await join("a")
    assert await a.elections.registry.cluster_config({"shards": 4}) == {"shards": 4}
    a.elections.contend(0)
    await until(lambda: a.first == {0})

    harness.user = user
    b = await join("b")
    b.elections.contend(0)
    config = asyncio.create_task(b.elections.registry.cluster_config({"shards": 8}))

    await until(lambda: b.problem is not None)
    assert "ZooKeeper node /headgate" in b.problem
    assert "is closed to" in b.problem
    a.withdraw(0)
    await never(lambda: b.first or b.holders or config.done(), 0.3)
    assert a.problem is None
    config.cancel()


@only_with_users
@pytest.mark.usefixtures("open_cluster", "quick_retries")
async def test_a_cluster_that_was_open_is_closed(harness: ElectionHarness, join: Join) -> None:
    """The daemons without a user lose their rights, and their places in queues count for nothing."""
    a = await join("a")
    assert await a.elections.registry.cluster_config({"shards": 4}) == {"shards": 4}
    a.elections.contend(0)
    await until(lambda: a.first == {0})

    harness.user = DAEMONS
    b = await join("b")
    b.elections.contend(0)

    await until(lambda: b.first == {0} and b.holders == {0: "b"})
    assert await b.elections.registry.cluster_config({"shards": 8}) == {"shards": 4}
    assert b.problem is None
    harness.user = None
    late = await join("late")
    late.elections.contend(0)
    await until(lambda: late.problem is not None)


@only_with_users
@pytest.mark.usefixtures("quick_retries")
async def test_a_root_of_another_user_is_named_and_used_once_it_is_gone(harness: ElectionHarness, join: Join) -> None:
    await harness.create_foreign_root()
    a = await join("a")
    a.elections.contend(0)
    config = asyncio.create_task(a.elections.registry.cluster_config({"shards": 4}))

    await until(lambda: a.problem is not None)
    await never(lambda: a.first or config.done(), 0.3)
    await harness.remove_foreign_root()

    await until(lambda: a.first == {0} and a.problem is None)
    assert await config == {"shards": 4}
