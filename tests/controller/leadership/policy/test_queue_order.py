"""The order of a queue: examples of each rule."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.leadership.policy.queue_order import (
    QueueOrder,
    SeenQueue,
    in_order,
    left_to_others,
    newest_node,
    passing_over,
    queue_nodes,
    read_order,
)
from controller.leadership.policy.spread import LiveDaemon

A, B, C = "b-1-0a1b2c3d-0000000007", "a-00000000-0000000008", "c-ffffffff-0000000010"


def test_queue_nodes_are_ordered_by_number_and_other_names_are_left_out() -> None:
    """Rule 1."""
    assert queue_nodes([C, "README.txt", "x-0000000001", B, A]) == [A, B, C]
    late = "d-0a1b2c3d-1000000001"
    assert queue_nodes([late, C]) == [C, late], "after a billion"


def test_the_first_one_is_in_front_while_it_is_there() -> None:
    """Rule 2."""
    assert in_order([A, B, C], QueueOrder(first=C)) == [C, A, B]
    assert in_order([A, B], QueueOrder(first=C)) == [A, B]
    assert in_order([A, B], QueueOrder()) == [A, B]


def test_the_next_one_is_behind_the_first_and_takes_its_place() -> None:
    """Rule 3. Rule 4: a successor waits."""
    order = QueueOrder(first=B, next=C)

    assert in_order([A, B, C], order) == [B, C, A]
    assert in_order([A, C], order) == [C, A]
    assert in_order([A, B], order) == [B, A]
    assert in_order([A, B, C], QueueOrder(successor=C)) == [A, B, C]


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"first": 7}', b'{"first": "\xff"}'])
def test_other_data_is_no_order(data: bytes) -> None:
    """Rule 5."""
    assert read_order(data) == QueueOrder()
    assert read_order(msgspec.json.encode(order := QueueOrder(A, True, B, C))) == order


def test_the_newest_node_of_an_instance_counts() -> None:
    """Rule 7."""
    again = "b-1-0a1b2c3d-0000000011"

    assert [newest_node(name, [again, A, B, C]) for name in ("b-1", "a", "c", "b", "")] == [again, B, C, None, None]


def test_one_that_passes_a_lock_on_goes_behind_the_next() -> None:
    """Rule 6. What another has passed on before stays as it is."""
    assert passing_over([A, B, C], "b-1") == QueueOrder(first=B)
    assert passing_over([A, B, C], "a") is passing_over([A], "b-1") is passing_over([], "a") is None


DAEMONS = [LiveDaemon("a"), LiveDaemon("b"), LiveDaemon("c")]


def queues(*holders_and_next: str) -> dict[int, SeenQueue]:
    """Return shard → queue; "ab" has holder a, then b."""
    return {n: SeenQueue(each[0], frozenset(each[1:]), next=each[1:2]) for n, each in enumerate(holders_and_next)}


def test_the_last_in_line_are_left_until_the_locks_differ_by_one() -> None:
    """Rules 1 and 3. Shard 0 is being restored."""
    assert [4, 3] == left_to_others("a", [1, 2, 3, 4], queues("ab", "ab", "ab", "ab", "ab"), DAEMONS)
    assert [3, 2] == left_to_others("a", [1, 2, 3], queues("ab", "ab", "ab", "ab"), DAEMONS)
    assert [] == left_to_others("a", [0, 1, 2, 7], queues("ab", "ab", "bc"), DAEMONS), "not b's, nor what is not seen"
    assert [2] == left_to_others("a", [0, 1, 2], queues("ab", "ab", "ab"), DAEMONS[1:]), "a has not registered yet"


def test_shards_go_to_those_that_are_next_in_their_queues() -> None:
    """Rule 2."""
    assert [3, 2] == left_to_others("a", [1, 2, 3], queues("ab", "ab", "ac", "ab"), DAEMONS)
    assert [2, 1] == left_to_others("a", [0, 1, 2], queues("ab", "ac", "ab"), DAEMONS)
    doubtful = [DAEMONS[0], replace(DAEMONS[1], readiness="doubtful")]
    assert [2] == left_to_others("a", [0, 1, 2], queues("ab", "ab", "ab"), doubtful)


@pytest.mark.parametrize("unable", [{"in_maintenance": True}, {"leaving": True}, {"readiness": "no_store"}, None])
def test_no_shard_is_left_to_a_daemon_that_would_give_it_away(unable: dict[str, object] | None) -> None:
    """Rule 2. None: it has not registered, or has ended."""
    live = DAEMONS[:1] if unable is None else [DAEMONS[0], replace(DAEMONS[1], **unable)]

    assert [] == left_to_others("a", [0, 1, 2], queues("abc", "abc", "abc"), [*live, DAEMONS[2]])


def test_a_daemon_that_cannot_lead_leaves_all_shards_to_those_that_are_ready() -> None:
    """Rule 5."""
    live = [replace(DAEMONS[0], readiness="no_store"), DAEMONS[1], replace(DAEMONS[2], readiness="doubtful")]
    seen = queues("ab", "ab", "ac", "bc")
    seen[1] = replace(seen[1], fixed=True)

    assert [1, 0] == left_to_others("a", [0, 1, 2], seen, live)
    assert [] == left_to_others("a", [], seen, live)
    both = [live[0], replace(live[1], readiness="no_broker"), DAEMONS[2]]
    assert [0] == left_to_others("a", [0, 1], queues("abc", "ab"), both), "b leaves it to c then"


def test_a_shard_without_a_contender_and_one_that_an_operator_placed_stay() -> None:
    """Rules 2 and 4."""
    seen = queues("a", "ab", "ab", "ab")
    seen[3] = replace(seen[3], fixed=True)

    assert [2, 1] == left_to_others("a", [0, 1, 2, 3], seen, DAEMONS)


@given(st.lists(st.permutations("abc"), min_size=1, max_size=24))
def test_shards_stay_somewhere_whatever_the_queues_are(orders: list[list[str]]) -> None:
    """Rule 3. Each daemon that has locks decides from the same view, and goes to the end of the queues that it leaves."""
    for _ in range(len(orders) * 3):
        seen = queues(*("".join(order) for order in orders))
        left = {n: name for name in "abc" for n in left_to_others(name, seen, seen, DAEMONS) if orders[n][0] == name}
        if not left:
            break
        for shard, name in left.items():
            orders[shard] = [*orders[shard][1:], name]
    else:
        pytest.fail("no daemon keeps them")

    held = [sum(order[0] == name for order in orders) for name in "abc"]
    assert sum(held) == len(orders)
