"""The collector of the process: what it looks at, what it frees, and what it leaves as it was."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from controller.process import garbage_collection
from metrics import events
from tests.support.fakes.recording_observer import RecordingObserver


class Node:
    """Refers to itself: only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def observed() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def garbage(observed: RecordingObserver) -> Iterator[garbage_collection.GarbageCollection]:
    with garbage_collection.GarbageCollection(observed) as entered:
        yield entered
    release()


def release() -> None:
    """Unfreeze what the test froze; what other tests have imported stays frozen, or each full collection looks at it."""
    gc.unfreeze()
    gc.freeze()


def promote() -> None:
    """Have Python promote objects to the oldest generation often enough."""
    for _ in range(garbage_collection.MAX_PROMOTIONS):
        gc.collect(1)


def scopes(observed: RecordingObserver) -> list[str]:
    return [each.scope for each in observed.of(events.GarbageCollected)]


def test_the_oldest_generation_is_left_alone_while_it_is_entered() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with garbage_collection.GarbageCollection(RecordingObserver()):
        assert gc.get_threshold() == (*before[:2], garbage_collection.NEVER)
        assert gc.get_freeze_count() > frozen

    assert gc.get_threshold() == before
    assert gc.get_freeze_count() > frozen, "a process that ends does not look at them again"
    release()


def test_nothing_is_collected_before_it_is_due(
    garbage: garbage_collection.GarbageCollection, observed: RecordingObserver
) -> None:
    garbage.collect_if_due(terms_ended=0, now=1.0)

    assert scopes(observed) == []


def test_new_garbage_is_freed_and_what_lives_is_not_looked_at_again(
    garbage: garbage_collection.GarbageCollection, observed: RecordingObserver
) -> None:
    dropped, living = weakref.ref(Node()), Node()
    promote()
    garbage.collect_if_due(terms_ended=0, now=1.0)

    assert scopes(observed) == ["new"]
    assert dropped() is None
    assert not any(each is living for each in gc.get_objects()), "it is frozen"


def test_frozen_terms_are_freed_after_they_have_ended(
    garbage: garbage_collection.GarbageCollection, observed: RecordingObserver
) -> None:
    term = Node()
    ended = weakref.ref(term)
    garbage.keep()
    del term
    promote()
    garbage.collect_if_due(terms_ended=garbage_collection.MAX_ENDED_TERMS - 1, now=1.0)
    assert ended() is not None, "new objects are collected, and it is none"
    garbage.collect_if_due(terms_ended=garbage_collection.MAX_ENDED_TERMS, now=2.0)

    assert ended() is None
    assert scopes(observed) == ["new", "all"]
    for more in (0, garbage_collection.MAX_ENDED_TERMS - 1, garbage_collection.MAX_ENDED_TERMS):
        garbage.collect_if_due(terms_ended=garbage_collection.MAX_ENDED_TERMS + more, now=3.0)
    assert scopes(observed) == ["new", "all", "all"], "each counts once"


# When which garbage is collected: each rule, with times as values.


NOW = 10_000.0


def test_nothing_is_collected_while_nothing_happens() -> None:
    assert garbage_collection.due(garbage_collection.CollectionHistory(), 0, NOW) is None
    assert garbage_collection.CollectionHistory() == garbage_collection.CollectionHistory(None, 0)


@pytest.mark.parametrize(("promotions", "expected"), [(24, None), (25, "new"), (1_000, "new")])
def test_new_objects_are_collected_after_many_promotions(promotions: int, expected: str | None) -> None:
    """Rule 1."""
    assert garbage_collection.due(garbage_collection.CollectionHistory(), promotions, NOW) == expected
    assert garbage_collection.due(garbage_collection.CollectionHistory(NOW - 1, 1), promotions, NOW) == expected


@pytest.mark.parametrize(("ended", "expected"), [(99, None), (100, "all"), (500, "all")])
def test_all_objects_are_collected_after_many_terms_have_ended(ended: int, expected: str | None) -> None:
    """Rule 2."""
    assert garbage_collection.due(garbage_collection.CollectionHistory(NOW - 1, ended), 0, NOW) == expected
    assert garbage_collection.due(garbage_collection.CollectionHistory(NOW - 1, ended), 25, NOW) == (expected or "new")


@pytest.mark.parametrize(("age", "expected"), [(3_599.0, None), (3_600.0, "all")])
def test_all_objects_are_collected_within_an_hour(age: float, expected: str | None) -> None:
    """Rule 3."""
    assert garbage_collection.due(garbage_collection.CollectionHistory(NOW - age), 0, NOW) == expected
