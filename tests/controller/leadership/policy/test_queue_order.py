"""The order of a queue: examples of each rule."""

import msgspec
import pytest

from controller.leadership.policy.queue_order import (
    QueueOrder,
    in_order,
    newest_node,
    passing_over,
    queue_nodes,
    read_order,
)

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


def test_an_order_is_read_as_it_was_written() -> None:
    order = QueueOrder(first=A, fixed=True, successor=B, next=C)

    assert read_order(msgspec.json.encode(order)) == order


def test_the_newest_node_of_an_instance_counts() -> None:
    """Rule 7."""
    again = "b-1-0a1b2c3d-0000000011"

    assert [newest_node(name, [again, A, B, C]) for name in ("b-1", "a", "c", "b", "")] == [again, B, C, None, None]


def test_one_that_passes_a_lock_on_goes_behind_the_next() -> None:
    """Rule 6. What another has passed on before stays as it is."""
    assert passing_over([A, B, C], "b-1") == QueueOrder(first=B)
    assert passing_over([A, B, C], "a") is passing_over([A], "b-1") is passing_over([], "a") is None
