"""Feature levels: which one a cluster can have, and who can be in it."""

import pytest

from controller.leadership.policy import feature_levels
from controller.leadership.policy.feature_levels import join_problem, judged, level_of, refusal
from headgate.model.text import MAX_SHOWN
from headgate.views.cluster import FeatureLevel
from tests.support.documents.markdown import sections

OF_THIS_VERSION = feature_levels.LEVELS


@pytest.fixture(autouse=True)
def levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """This version supports levels 2 to 3."""
    monkeypatch.setattr(feature_levels, "LEVELS", {1: "old", 2: "more", 3: "a new entry"})
    monkeypatch.setattr(feature_levels, "FIRST", 2)


def test_the_document_lists_what_each_level_allows() -> None:
    rows = sections("operations/upgrade.md")["Feature levels"].table()

    assert [[str(level), text] for level, text in OF_THIS_VERSION.items()] == rows


def test_the_level_can_rise_once_every_daemon_supports_it() -> None:
    assert judged(2, {"a": (1, 3), "b": (2, 3)}, ["a"]) == FeatureLevel(level=2, newest=3)
    assert judged(3, {"a": (1, 3), "b": (3, 3)}, ["gone"]) == FeatureLevel(level=3, newest=3)
    assert judged(2, {}, []) == judged(2, {"a": (1, 1)}, []) == FeatureLevel(level=2, newest=2), "never lower"


def test_what_prevents_a_higher_level_is_named() -> None:
    found = judged(1, {"b": (1, 2), "a": (1, 3), "c": (1, 1)}, ["a", "gone"])

    assert (found.level, found.newest) == (1, 3)
    assert found.problems[:2] == ("daemon b supports levels 1 to 2", "daemon c supports levels 1 to 1")
    assert found.problems[2].startswith("daemon gone is in maintenance and not live, so its version is not known: ")
    many = judged(1, {"new": (1, 3)} | {f"old-{n:02d}": (1, 1) for n in range(MAX_SHOWN + 5)}, [])
    assert (len(many.problems), many.problems[-1]) == (MAX_SHOWN + 1, "… and 5 more")


def test_a_daemon_of_another_level_is_refused_with_both_and_a_remedy() -> None:
    older = "start a version that supports levels 1 to 2, and run headgate cluster upgrade first"
    for level, remedy in ((1, older), (4, "install the version that the other daemons have: headgate daemon list")):
        reason = f"the cluster has feature level {level}, and version 9.1 supports levels 2 to 3: {remedy}"
        assert join_problem(level, "9.1", (2, 3)) == reason
    assert join_problem(2, "9.1", (2, 3)) is join_problem(3, "9.1", (2, 3)) is None


def test_what_a_level_allows_is_refused_below_it() -> None:
    assert refusal({"level": 3}, 3) is None
    assert refusal({}, 3) == "the cluster has feature level 1, and a new entry needs level 3: headgate cluster upgrade"
    assert [level_of({"level": level}) for level in (2, 0, -1, "2", True, None)] == [2, 0, 0, 0, 0, 0]
