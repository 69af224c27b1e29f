"""Handlers of an event."""

from headgate.client.cluster_watch import Handlers


def test_a_handler_that_was_added_twice_is_removed_once_for_each() -> None:
    handlers: Handlers[str] = Handlers()
    first, _ = handlers.add("a"), handlers.add("a")

    first()
    first()

    assert list(handlers) == ["a"]


def test_handlers_may_be_added_and_removed_while_they_are_called() -> None:
    handlers: Handlers[str] = Handlers()
    removals = [handlers.add(each) for each in "ab"]

    called = []
    for each in handlers:
        called.append(each)
        removals[1]()
        handlers.add("c")

    assert called == ["a", "b"]
    assert list(handlers) == ["a", "c", "c"]
